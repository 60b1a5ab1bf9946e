"""The page's form of the live model, drawn for one sequence before any script runs.

`live.js` fills the same elements anew: what it changes has a class or a data attribute.
"""

import json
from html import escape

from torch import Tensor

from aiayn.tokens import BOS, EOS, PAD

from .state import LETTERS, NAMES, TASK, Copied

N_LAYERS = 2
SHADES = 16  # of the maps: weights are drawn in sixteenths
ATTENTIONS = {
    "encoder_layers.0.self_attention": "Encoder 1",
    "encoder_layers.1.self_attention": "Encoder 2",
    "decoder_layers.0.self_attention": "Decoder 1, own past",
    "decoder_layers.0.cross_attention": "Decoder 1, source",
    "decoder_layers.1.self_attention": "Decoder 2, own past",
    "decoder_layers.1.cross_attention": "Decoder 2, source",
}
"""A short name for each attention, in the order in which they work."""
SHOWN, HEAD, ROW = "decoder_layers.1.cross_attention", 1, 3
"""The map, head and row that the page begins with."""


def head_name(attention: str, head: int) -> str:
    """A head in words."""
    stack, layer, kind = attention.split(".")
    return (
        f"{kind.replace('_', '-')} head {head + 1} of {stack.split('_')[0]} "
        f"layer {int(layer) + 1}"
    )


def spoken(token: int) -> str:
    return "the end" if token == EOS else NAMES[token]


def shades(weights: Tensor) -> str:
    """A map as one path for each shade: squares of side 1, a row for each query."""
    squares: dict[int, list[str]] = {}
    for y, row in enumerate(weights.tolist()):
        for x, weight in enumerate(row):
            squares.setdefault(int(weight * SHADES + 0.5), []).append(
                f"M{x} {y}h1v1h-1z"
            )
    return "".join(
        f'<path d="{"".join(parts)}" fill-opacity="{shade / SHADES:g}"/>'
        for shade, parts in sorted(squares.items())
        if shade
    )


def ground(lengths: list[int]) -> str:
    """The cells that exist: as many in each row as there are keys."""
    d = "".join(f"M0 {y}h{n}v1h-{n}z" for y, n in enumerate(lengths))
    return f'<path class="ground" d="{d}" fill-opacity=".06"/>'


def head_button(name: str, head: int, weights: Tensor) -> str:
    rows, columns = weights.shape
    chosen = (name, head) == (SHOWN, HEAD)
    lengths = row_lengths(name, rows, columns)
    return (
        f'<button type="button" data-attention="{name}" data-head="{head}" '
        f'aria-label="{head_name(name, head)}" '
        f'aria-pressed="{str(chosen).lower()}" tabindex="{0 if chosen else -1}">'
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" width="44" '
        f'height="44" aria-hidden="true">{ground(lengths)}{shades(weights)}</svg>'
        "</button>"
    )


def row_lengths(name: str, rows: int, columns: int) -> list[int]:
    causal = name.startswith("decoder") and name.endswith("self_attention")
    return [y + 1 if causal else columns for y in range(rows)]


def heads(copied: Copied) -> str:
    lines = []
    for name, short in ATTENTIONS.items():
        maps = copied.maps[name]
        buttons = "".join(head_button(name, i, maps[i]) for i in range(len(maps)))
        lines.append(f'<div class="block"><span>{short}</span>{buttons}</div>')
    return "\n".join(lines)


def token_button(side: str, i: int, token: int, weight: float | None) -> str:
    of = "of the source" if side == "source" else "written"
    chosen = side == "written" and i == ROW
    shade = "" if weight is None else f' style="--w:{100 * weight:.0f}%"'
    right = "" if side == "source" else ", right"
    return (
        f'<button type="button" data-side="{side}" data-at="{i}" '
        f'aria-label="token {i + 1} {of}: {spoken(token)}{right}" '
        f'aria-pressed="{str(chosen).lower()}" tabindex="{0 if chosen else -1}"'
        f"{shade}>{NAMES[token]}</button>"
    )


def tape(copied: Copied) -> str:
    """Each source token, and below it what was written in its place."""
    weights = copied.maps[SHOWN][HEAD, ROW].tolist()
    pairs = "".join(
        f'<div class="pair"><span>{i + 1}</span>'
        f"{token_button('source', i, expected, weights[i])}"
        f"{token_button('written', i, token, None)}</div>"
        for i, (expected, token) in enumerate(
            zip(copied.source, copied.written, strict=True)
        )
    )
    return (
        '<div class="pair names"><span>token</span><span>source</span>'
        f"<span>written</span></div>{pairs}"
    )


def big_map(copied: Copied) -> str:
    """The chosen map, with the tokens that look at its left and the looked at above."""
    weights = copied.maps[SHOWN][HEAD]
    rows, columns = weights.shape
    size = min(0.72, 0.042 * (columns + 1))
    keys = "".join(
        f'<text x="{x + 0.5:g}" y="-.5">{label(token)}</text>'
        for x, token in enumerate(copied.source)
    )
    queries = "".join(
        f'<text x="-.6" y="{y + 0.5:g}"{" class=on" if y == ROW else ""}>'
        f"{label(token)}</text>"
        for y, token in enumerate(copied.written)
    )
    return (
        f'<svg class="plan" width="320" viewBox="-1.2 -1 {columns + 1.3:.4g} {rows + 1.1:.4g}" '
        f'style="font-size:{size:.3g}px" aria-hidden="true">'
        f"{ground(row_lengths(SHOWN, rows, columns))}{shades(weights)}{keys}{queries}"
        f'<path class="row" d="M0 {ROW}h{columns}v1h-{columns}z" fill="none"/></svg>'
    )


def label(token: int) -> str:
    """A token's name in a map, where there is room for one character."""
    return {BOS: "▸", EOS: "■", PAD: "∅"}.get(token, NAMES[token])


def map_table(copied: Copied) -> str:
    weights = copied.maps[SHOWN][HEAD].tolist()
    head = "".join(f'<th scope="col">{NAMES[token]}</th>' for token in copied.source)
    body = "".join(
        f'<tr><th scope="row">{NAMES[token]}</th>'
        + "".join(f"<td>{weight:.2f}</td>" for weight in row)
        + "</tr>"
        for token, row in zip(copied.written, weights, strict=True)
    )
    return (
        "<table><caption>Each row: a token that looks. Each column: a token that is "
        f'looked at.</caption><thead><tr><th scope="col">token</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def chances(copied: Copied) -> str:
    order = [*(EOS + 1 + i for i in range(len(LETTERS))), EOS, BOS, PAD]
    shares = copied.chances[ROW].tolist()
    rows = "".join(
        f'<tr data-token="{token}"{" class=on" if copied.written[ROW] == token else ""}>'
        f'<th scope="row">{NAMES[token]}</th>'
        f'<td style="--w:{100 * shares[token]:.1f}%">{shares[token]:.2f}</td></tr>'
        for token in order
    )
    return (
        f"<table><caption>Probability of token {ROW + 1}</caption>"
        f"<tbody>{rows}</tbody></table>"
    )


def looks(copied: Copied) -> str:
    """In words, where the chosen head looks while the chosen token is written."""
    weights = copied.maps[SHOWN][HEAD, ROW]
    first, second = weights.topk(2).indices.tolist()

    def place(j):
        token = spoken(copied.source[j])
        return f"token {j + 1} of the source, {token} ({weights[j]:.2f})"

    return (
        f"While token {ROW + 1}, {spoken(copied.written[ROW])}, is written, "
        f"{head_name(SHOWN, HEAD)} looks most at {place(first)}, then at "
        f"{place(second)}."
    )


def html(title: str, sequence: str, copied: Copied, file: str) -> str:
    """The whole figure for a sequence that was copied right."""
    n_written = len(copied.written)
    total = n_written + N_LAYERS  # one step a layer of the encoder, one a token
    last = f"Step {total} of {total}: all is written"
    data = json.dumps({"letters": LETTERS, "longest": TASK.max_length})
    title = escape(title)
    return f"""<aiayn-live data-weights="{file}">
<figure aria-label="{title}">
<figcaption class="title">{title}</figcaption>
<form autocomplete="off">
<fieldset class="line" disabled><legend>Sequence</legend>
<label>Sequence <input type="text" name="sequence" value="{sequence}" size="21" \
spellcheck="false" autocapitalize="none" autocomplete="off"></label>
<button type="button" data-do="shuffle">Shuffle</button>
<button type="button" data-do="random">Another</button>
<button type="button" data-do="load" hidden>Run the model here (590 kB)</button>
<output class="status">A stored run. With JavaScript, the model runs here.</output>
</fieldset>
<div class="tape" role="group" aria-label="Source, and what is written">{tape(copied)}</div>
<output class="verdict" aria-live="polite">All {n_written} tokens are right, \
the end included.</output>
<fieldset class="line break" disabled><legend>Break it</legend>
<b aria-hidden="true">Break it</b>
<label><input type="checkbox" role="switch" name="positions" checked autocomplete="off"> \
Positions</label>
<label><input type="checkbox" role="switch" name="scaled" checked autocomplete="off"> \
<span>Scores divided by √d<sub>k</sub></span></label>
<button type="button" data-do="repair">Repair everything</button>
</fieldset>
<fieldset class="line" disabled><legend>Step by step</legend>
<button type="button" data-do="back" aria-label="one step back">◂</button>
<button type="button" data-do="next" aria-label="one step on">▸</button>
<button type="button" data-do="play">Play</button>
<label class="steps"><span>Step</span><input type="range" name="step" min="0" \
max="{total}" value="{total}" aria-valuetext="{last}"></label>
<b class="where" aria-hidden="true">{last}</b>
</fieldset>
<output class="words" aria-live="polite">{looks(copied)}</output>
<div class="label">Every head’s map</div>
<div class="heads" role="group" aria-label="Every head’s map">
{heads(copied)}
</div>
<div class="panels">
<div class="map"><div class="label name">{head_name(SHOWN, HEAD)}</div>
<fieldset class="line" disabled><legend>This head</legend>
<label><input type="checkbox" role="switch" name="head" checked autocomplete="off"> \
This head works</label>
<span class="score">{n_written} of {n_written} tokens right</span></fieldset>
{big_map(copied)}
<details><summary>This map in numbers</summary><div class="scroll" tabindex="0" \
role="group" aria-label="Weights of this map">{map_table(copied)}</div></details>
</div>
<div class="chances">{chances(copied)}</div>
</div>
</form>
</figure>
<script type="application/json">{data}</script>
</aiayn-live>
"""


def text(title: str, copied: Copied) -> str:
    """The same in words and numbers."""
    join = lambda tokens: " ".join(NAMES[token] for token in tokens)
    rows = "\n".join(
        f"{NAMES[token]:>5} " + " ".join(f"{weight:.2f}" for weight in row)
        for token, row in zip(
            copied.written, copied.maps[SHOWN][HEAD].tolist(), strict=True
        )
    )
    best = copied.chances.amax(dim=-1).min()
    return (
        f"{title}\nsource:  {join(copied.source)}\nwritten: {join(copied.written)}\n"
        f"Each token had a probability of at least {best:.2f}.\n"
        f"{head_name(SHOWN, HEAD)}, a row for each token written:\n{rows}"
    )
