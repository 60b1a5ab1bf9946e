"""One look for every plot of the book.

The same colour always means the same thing. The book's pages replace these colours
by their own light or dark form, so a plot names them only through `COLORS`.
"""

COLORS = {
    "query": "#0072b2",
    "key": "#d55e00",
    "value": "#00805e",
    "masked": "#868686",
    "accent": "#a4458f",
    "muted": "#5f6670",
}
"""Colour by role: distinct to colour-blind readers, 3.5 : 1 or more on white."""

_SETTINGS = {
    "figure.figsize": (5.8, 3.1),  # text stays legible when a phone shrinks it
    "figure.facecolor": "none",  # pages are light or dark: plots have no ground
    "figure.constrained_layout.use": True,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "font.size": 11,
    "font.family": "sans-serif",
    "image.interpolation": "none",  # resampling would turn 10 cells into 100 kB
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",  # text stays text: it can be read, found and recoloured
    "svg.hashsalt": "aiayn",  # two runs give the same ids
}


def _matplotlib():
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            'figures need matplotlib: pip install "aiayn[figures]"'
        ) from error
    return matplotlib


def use() -> None:
    """Draw from now on in the book's style; in a notebook, as reproducible SVG."""
    matplotlib = _matplotlib()
    roles = ("query", "key", "value", "accent", "muted")
    matplotlib.rcParams.update(_SETTINGS)
    matplotlib.rcParams["axes.prop_cycle"] = matplotlib.cycler(
        color=[COLORS[role] for role in roles]
    )
    try:
        from IPython import get_ipython
    except ImportError:
        return
    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        # a date or a version in the file would make two runs differ
        set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})


def weights_colormap():
    """Colours for attention weights in [0, 1]: from nothing to the query's blue.

    Small weights are transparent, so that the map suits a light and a dark page.
    """
    matplotlib = _matplotlib()
    blue = matplotlib.colors.to_rgb(COLORS["query"])
    return matplotlib.colors.LinearSegmentedColormap.from_list(
        "aiayn_weights", [(*blue, 0.04), (*blue, 1.0)]
    )


def weights_map(axes, weights, *, queries=None, keys=None, title=None):
    """Draw attention weights `(n_queries, n_keys)`: a row for each query.

    Args:
        axes: the matplotlib axes to draw in.
        weights: a matrix of weights in [0, 1], as a tensor, array or nested list.
        queries, keys: labels of rows and columns; positions where left out.
        title: what stands above the map.

    Returns:
        The image, for a colour bar.
    """
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu().tolist()
    image = axes.imshow(
        weights, cmap=weights_colormap(), vmin=0, vmax=1, aspect="equal"
    )
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    if keys is not None:
        axes.set_xticks(range(len(keys)), labels=keys)
    if queries is not None:
        axes.set_yticks(range(len(queries)), labels=queries)
    if title is not None:
        axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(True)
    return image
