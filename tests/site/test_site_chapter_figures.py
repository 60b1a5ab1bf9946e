"""The numbers that the chapters' figures show, computed anew.

tests/site/test_site_figures.py proves that each figure shows what it stores; here the
stored numbers are proved right, and both through what stands on the page.
"""

import math
import re

import figure_walk
import pytest
import torch

from aiayn import (
    PAD,
    GroupedQueryAttention,
    Transformer,
    TransformerConfig,
    attention_weights,
    causal_mask,
    padding_mask,
    sinusoidal_encoding,
)


@pytest.fixture
def figure(browser, site):
    """Open a chapter's figure by its title; gives it and the data that it stores."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def open_figure(chapter, title):
        tab = context.new_page()
        tab.goto((site / "notebooks" / f"{chapter}.html").as_uri())
        figure = tab.locator("aiayn-figure", has=tab.locator(f"text={title}")).first
        return figure, figure_walk.stored(figure)

    yield open_figure
    context.close()


def settings(data, state):
    """The control's texts in a state."""
    return [texts[i] for texts, i in zip(data["texts"], state, strict=True)]


def near(texts, numbers):
    """Every text is its number, rounded to the decimals that the text has."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64).flatten().tolist()
    for text, number in zip(texts, numbers, strict=True):
        error = 0.501 * 10 ** -len(text.partition(".")[2])
        assert abs(float(text.replace("−", "-")) - number) <= error, (text, number)


def columns(panel, first=1):
    """The numbers of a panel's table, row by row."""
    return [text for row in panel["rows"][first:] for text in row[1:]]


def test_chapter_1_shows_a_look_up_by_hue(figure):
    element, data = figure("01_recurrence", "A look-up by hue")
    keys = torch.tensor([0.0, 60.0, 120.0], dtype=torch.float64)
    colours = torch.tensor([[255.0, 0], [255, 255], [0, 255]], dtype=torch.float64)
    for state, (words, weights_panel) in figure_walk.walk(element, data):
        hue, temperature = map(float, settings(data, state))
        weights = (-(hue - keys).abs() / temperature).softmax(dim=-1)
        near(columns(weights_panel), weights)
        red, green = (weights @ colours).round().int().tolist()
        assert f"red {red}, green {green} of 255" in words["words"], state
        assert f"{weights.max():.2f}" in words["words"], state


def test_chapter_2_shows_masks_and_weights(figure):
    element, data = figure("02_scaled_dot_product", "Who sees what")
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    keys = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    padded = {"none": [], "last": [-1], "last two": [-1, -2], "first": [0]}
    seen = set()
    states = figure_walk.walk(element, data, most=40, few=40)
    for state, (words, mask_panel, weights_panel) in states:
        n_queries, n_keys, causal, padding = settings(data, state)
        n_queries, n_keys, causal = int(n_queries), int(n_keys), causal == "on"
        tokens = torch.full((1, n_keys), PAD + 1)
        for place in padded[padding]:
            if place < n_keys and -place <= n_keys:
                tokens[0, place] = PAD
        mask = padding_mask(tokens)[0, 0].expand(n_queries, n_keys)
        if causal:
            mask = mask & causal_mask(n_queries, n_keys)
        marks = ["✓" if may else "·" for may in mask.flatten().tolist()]
        assert columns(mask_panel) == marks, state
        weights = attention_weights(queries[:n_queries], keys[:n_keys], mask)
        near(columns(weights_panel), weights)
        for i, row in enumerate(mask.tolist(), start=1):
            may = ", ".join(str(j) for j, m in enumerate(row, start=1) if m)
            said = [s for s in words["words"].lower().split("; ") if f"query {i} " in s]
            assert len(said) == 1
            assert (may or "nothing") in said[0], state
        seen.add(state)
    assert len(seen) >= 20


def test_chapter_2_shows_weights_and_gradients(figure, notebook_function):
    element, data = figure("02_scaled_dot_product", "What the width and the divisor do")
    random_rows = notebook_function("02_scaled_dot_product", "random_rows")
    compared = 0
    for state, (_, weights_panel, shares, numbers) in figure_walk.walk(element, data):
        width, scaled = settings(data, state)
        if width not in ("4", "64"):
            continue
        query, key, value = random_rows(int(width))
        query.requires_grad_()
        scores = (query @ key.mT)[:, 0] * (int(width) ** -0.5 if scaled == "on" else 1)
        scores.retain_grad()
        weights = scores.softmax(-1)
        (weights * value).sum().backward()  # every row has a query of its own
        norms = [scores.grad.norm(dim=-1), query.grad[:, 0].norm(dim=-1)]
        ordered = weights.detach().sort(descending=True).values.mean(0)
        near(columns(weights_panel), ordered)
        limits = [0, 0.001, 0.01, 0.1, 1, float("inf")]
        counts = [
            ((low <= norms[1]) & (norms[1] < high)).double().mean() * 100
            for low, high in zip(limits, limits[1:], strict=False)
        ]
        near(columns(shares), counts)
        expected = [
            f(norm).item() for norm in norms for f in (torch.median, torch.mean)
        ]
        for text, number in zip(numbers["values"], expected, strict=True):
            assert float(text) == pytest.approx(number, rel=1e-3, abs=5e-5)
        compared += 1
    assert compared >= 4


def test_chapter_3_shows_where_the_numbers_of_a_token_go(figure):
    """Columns of a head by counting; the bare view goes straight on."""
    element, data = figure("03_multi_head", "Two tokens of width 8, cut into heads")
    seen = set()
    for state, (words, tiles) in figure_walk.walk(element, data):
        n_heads, way = settings(data, state)
        width = 8 // int(n_heads)
        if way == "split_heads":
            rows = [
                [8 * token + width * head + i for i in range(width)]
                for head in range(int(n_heads))
                for token in range(2)
            ]
        else:
            rows = [list(range(i, i + width)) for i in range(0, 16, width)]
        numbers = [number for row in rows for number in row]
        assert columns(tiles) == [str(number) for number in numbers], state
        owners = ["state accent" if number < 8 else "state " for number in numbers]
        assert tiles["marks"] == owners, state
        apart = max(rows[0] + rows[1]) < 8
        assert ("never meets token 2" in words["words"]) == apart, state
        assert apart == (way != "split_heads" and n_heads != "1")
        seen.add((n_heads, way))
    assert len(seen) == 6


def test_chapter_4_shows_the_encoding(figure):
    element, data = figure("04_positional_encoding", "A clock with eight hands")
    exact = sinusoidal_encoding(41, 16, dtype=torch.float64)
    for (position, hand), shown in figure_walk.walk(element, data, most=30):
        _, row, wave, products = shown
        near(columns(row), exact[position])
        # the wave is drawn at quarters of positions: every fourth is a row of the table
        pair = exact[:, 2 * hand : 2 * hand + 2]
        near(columns({"rows": wave["rows"][1::4]}, first=0), pair)
        near(columns(products), exact @ exact[position])
        [x, *_] = figure_walk.points(wave["paths"]["mark"])
        assert abs(x - 100 * position / 40) < 0.011


def test_chapter_5_shows_a_token_through_the_norm(figure):
    """With torch's own norm and autograd, at every size and offset."""
    title = "One token of eight components, through the norm"
    element, data = figure("05_sublayers", title)
    pattern = torch.tensor([1.4, -0.6, 0.3, -1.7, 0.9, 0.2, -1.1, 0.6]).double()
    pattern = (pattern - pattern.mean()) / pattern.std(correction=0)
    arriving = torch.tensor([1.0, 0.5, -0.5, 0.0, -1.0, 1.0, 0.5, -0.5]).double()
    exponents = [i / 2 for i in range(-8, 5)]

    def through(token):
        token = token.clone().requires_grad_()
        out = torch.nn.functional.layer_norm(token, (8,))
        (gradient,) = torch.autograd.grad(out, token, arriving)
        return out.detach(), gradient.norm()

    every = [through(10**e * pattern) for e in exponents]
    spread = [out.std(correction=0).item() for out, _ in every]
    lengths = torch.stack([length for _, length in every])
    for state, (words, bars, sizes, gradients) in figure_walk.walk(element, data):
        offset = float(settings(data, state)[1].replace("−", "-"))
        out, _ = through(10 ** exponents[state[0]] * pattern + offset)
        near(columns(bars), out)
        near(columns(sizes), spread)
        near(columns(gradients), lengths.log10())
        assert f"{spread[state[0]]:.2f} around 0" in words["words"], state


def test_chapter_6_shows_the_weights_of_its_model(figure):
    """Its model built anew, and each attention asked for the weights of its inputs."""
    element, data = figure("06_transformer", "Who looks where in an untrained model")
    config = TransformerConfig(
        12, 12, d_model=8, n_layers=2, n_heads=2, d_ff=32, dropout=0.0
    )
    seed = torch.Generator().manual_seed(6)
    model = Transformer(config, generator=seed).double().eval()
    # cats do see dogs . / dogs sleep . / sleep .; read from BOS on, in German
    source = [[3, 5, 6, 4, 2], [4, 7, 2, 0, 0], [7, 2, 0, 0, 0]]
    target = [[1, 8, 10, 9], [1, 9, 11, 2], [1, 11, 2, 0]]
    inputs = {}
    for name, module in model.named_modules():
        if name.endswith("attention") and "around" not in name:
            module.register_forward_pre_hook(
                lambda _, given, settings, name=name: inputs.update(
                    {name: (given, settings)}
                ),
                with_kwargs=True,
            )
    with torch.no_grad():
        model(torch.tensor(source), torch.tensor(target))
    seen = set()
    for state, (words, grid) in figure_walk.walk(element, data, most=40, few=40):
        label, head, sentence = settings(data, state)
        side, kind, layer = label.replace(" layer ", "").split(",")
        name = f"{side}_layers.{int(layer) - 1}.{kind.strip()}_attention"
        (query, key, _, mask), more = inputs[name]
        more.pop("cache", None)
        with torch.no_grad():
            weights = model.get_submodule(name).weights(query, key, mask, **more)
        near(columns(grid), weights[int(sentence) - 1, int(head) - 1])
        keys = target if (side, kind) == ("decoder", " self") else source
        padding = keys[int(sentence) - 1].count(0)
        assert f"{padding} of them padding" in words["words"], state
        assert ("none looks ahead" in words["words"]) == (keys is target), state
        seen.add((name, head, sentence))
    assert len(seen) >= 30


def test_chapter_6_shows_where_parameters_sit(figure):
    """Counted from models of every size, by what their parameters belong to."""
    element, data = figure("06_transformer", "Where the parameters sit")
    parts = ("embedding", "_attention.", "feed_forward.", "norm")
    for state, (words, bars) in figure_walk.walk(element, data, most=12):
        d_model, n_layers, ratio, vocab_size = (
            int(text.replace(",", "")) for text in settings(data, state)
        )
        config = TransformerConfig.base(
            vocab_size, d_model=d_model, n_layers=n_layers, d_ff=ratio * d_model
        )
        with torch.device("meta"):
            named = dict(Transformer(config).named_parameters())
        counts = [0, 0, 0, 0]
        for name, weight in named.items():
            (part,) = (
                i
                for i, p in enumerate(parts)
                if p in name and not (i in (1, 2) and ".norm." in name)
            )
            counts[part] += weight.numel() / 1e6
        near(columns(bars), [100 * count / sum(counts) for count in counts])
        millions = [f"{count:.1f}" for count in (sum(counts), *counts)]
        assert re.findall(r"\d+\.\d", words["words"]) == millions, state


def test_chapter_7_shows_a_beam_search(figure):
    """Every state by a search in plain lists of (probability, words)."""
    element, data = figure("07_decoding", "A beam search, step by step")
    after = {
        "BOS": {"a": 0.5, "b": 0.3, "c": 0.2, "EOS": 0.0},
        "a": {"a": 0.04, "b": 0.36, "c": 0.26, "EOS": 0.34},
        "b": {"a": 0.15, "b": 0.05, "c": 0.7, "EOS": 0.1},
        "c": {"a": 0.2, "b": 0.13, "c": 0.05, "EOS": 0.62},
    }

    def search(k, alpha, last_step):
        penalty = lambda length: ((5 + length) / 6) ** alpha
        still_open, found = [(1.0, ["BOS"])], []
        for step in range(1, last_step + 1):
            grid, candidates = [], []
            for p, words in still_open:
                grid.append([p * chance for chance in after[words[-1]].values()])
                for token, chance in after[words[-1]].items():
                    candidates += [(p * chance, [*words, token])] * (chance > 0)
            parents = [" ".join(words[1:]) or "BOS" for _, words in still_open]
            candidates.sort(key=lambda candidate: -candidate[0])
            ends = [c for c in candidates[:k] if c[1][-1] == "EOS"]
            still_open = [c for c in candidates if c[1][-1] != "EOS"][:k]
            cut = still_open if step == 6 else []
            found += [(math.log(p) / penalty(step), words) for p, words in ends + cut]
            found.sort(reverse=True)
            bound = None
            if step < 6:
                bound = math.log(still_open[0][0]) / penalty(6)
            if step == 6 or (found and bound < found[0][0]):
                return step, True, parents, grid, ends, still_open, found, bound
        return step, False, parents, grid, ends, still_open, found, bound

    spelled = lambda chosen: ", ".join(" ".join(w[1:]) for _, w in chosen) or "none"
    answers = set()
    for state, panels in figure_walk.walk(element, data, most=54, few=54):
        words, tiles, numbers = panels
        k, alpha, step = settings(data, state)
        k, alpha, step = int(k), float(alpha), int(step.split()[0])
        last, done, parents, grid, ends, kept, found, bound = search(k, alpha, step)
        assert ("has stopped after step" in words["words"]) == (last < step), state
        assert [row[0] for row in tiles["rows"][1:]] == parents, state
        near([text.split()[0] for text in columns(tiles)], grid)
        looks = {tuple(w[1:]): ("✓", "value") for _, w in ends}
        looks |= {tuple(w[1:]): ("→", "query") for _, w in kept}
        expected = [
            looks.get((*parent.split(), token), ("", ""))
            for parent in (p if p != "BOS" else "" for p in parents)
            for token in ("a", "b", "c", "EOS")
        ]
        signs = [" ".join(text.split()[1:]) for text in columns(tiles)]
        assert signs == [sign for sign, _ in expected], state
        assert tiles["marks"] == [f"state {role}" for _, role in expected], state
        says_ends, says_kept, says_best, score, limit = numbers["values"]
        assert (says_ends, says_kept) == (spelled(ends), spelled(kept)), state
        assert says_best == (" ".join(found[0][1][1:]) if found else "none"), state
        if found:
            near([score], [found[0][0]])
        if not done:
            near([limit], [bound])
        answers.add(says_best) if done else None
    assert {"a b c EOS", "b c EOS", "a EOS"} <= answers


def test_chapter_8_shows_the_work_of_each_layer(figure):
    """For a token and d²: projections 4, what it sees 2·keys/d, each map of two 2."""
    element, data = figure("08_cost", "The work of a layer for each token")
    seen = set()
    for state, (words, curve, numbers) in figure_walk.walk(element, data):
        n, d = (int(text.replace(",", "")) for text in settings(data, state))
        work = [4 + 2 * n / d, 4 + 2 * min(n, 64) / d, 8, 6, 2, 3]
        near(numbers["values"], work)
        assert f"takes {work[0] / 8:.2f} times" in words["words"], state
        assert f"meets at n = {2 * d:,}." in words["words"], state
        assert f"{2 * n / d / work[0]:.0%} of its work" in words["words"], state
        lengths = [int(row[0].replace(",", "")) for row in curve["rows"][1:]]
        near(columns(curve), [w for m in lengths for w in (4 + 2 * m / d, 8, 6)])
        [x, *_] = figure_walk.points(curve["paths"]["mark"])
        assert x == pytest.approx(100 * (n - 64) / (2048 - 64), abs=0.02)
        seen.add((n, d))
    assert len(seen) >= 20


def test_chapter_10_shows_who_reads_what_and_what_it_costs(figure):
    """Who reads which key head: told by attention, with a value for each key head."""
    element, data = figure("10_grouped_query", "Eight heads and their key heads")
    seen = set()
    for state, shown in figure_walk.walk(element, data, most=40, few=40):
        words, grid, numbers, curve = shown
        n_kv_heads, order, length = settings(data, state)
        n_kv_heads, length = int(n_kv_heads), int(length.replace(",", ""))
        keys, value = torch.zeros(1, n_kv_heads, 3, 1), torch.eye(n_kv_heads)
        value = value[None, :, None].expand(1, n_kv_heads, 3, n_kv_heads)
        if order == "neighbours":
            module = GroupedQueryAttention(8, 8, n_kv_heads=n_kv_heads)
            reads = module.mix(torch.zeros(1, 8, 1, 1), keys, value)[0, :, 0]
        else:
            reads = value.repeat(1, 8 // n_kv_heads, 1, 1)[0, :, 0]
        assert columns(grid) == ["✓" if r else "·" for r in reads.flatten()], state
        first = ", ".join(str(i + 1) for i in reads[:, 0].nonzero().flatten().tolist())
        plural = "s" if n_kv_heads < 8 else ""
        assert f"key head 1 serves head{plural} {first};" in words["words"], state
        token = 6 * 2 * n_kv_heads * 64 * 4
        assert f"takes {token:,} bytes" in words["words"], state
        near(numbers["values"], [8 / n_kv_heads, token * length / 2**20])
        lengths = [int(row[0].replace(",", "")) for row in curve["rows"][1:]]
        sizes = [6 * 2 * h * 64 * 4 * n / 2**20 for n in lengths for h in (8, 4, 2, 1)]
        near(columns(curve), sizes)
        [x, *_] = figure_walk.points(curve["paths"]["mark"])
        assert x == pytest.approx(100 * length / 8192, abs=0.02)
        seen.add((n_kv_heads, order))
    assert len(seen) == 8


def test_chapter_9_shows_what_a_cache_takes(figure):
    """Bytes from the public shapes, written out; a gigabyte is 10⁹ of them."""
    element, data = figure("09_kv_cache", "What the cache of a batch takes")
    llama = {32: (4096, 4096, 11008), 80: (8192, 1024, 28672)}
    parameters = {
        layers: 64_000 * d + d + layers * (2 * d * (d + keys + 1) + 3 * d * inside)
        for layers, (d, keys, inside) in llama.items()
    }
    models = {  # numbers of a token, parameters
        "base": (2 * 6 * 512, 65_110_016),
        "big": (2 * 6 * 1024, 218_300_416),
        "GPT-3": (2 * 96 * 12288, 175e9),
        "Llama 2 7B": (2 * 32 * 4096, parameters[32]),
        "Llama 2 70B": (2 * 80 * 1024, parameters[80]),
    }
    sizes = {"float32": 4, "float16": 2, "8 bits": 1}
    seen = set()
    for state, (words, numbers, curve) in figure_walk.walk(element, data):
        model, kind, *rest = settings(data, state)
        length, batch = (int(text.replace(",", "")) for text in rest)
        token, weights = (x * sizes[kind] for x in models[model])
        for text, taken in zip(
            numbers["values"], (token * length * batch, weights), strict=True
        ):
            amount, unit = text.replace(",", "").split()
            scale = {"GB": 1e9, "MB": 1e6}[unit]
            assert float(amount) * scale == pytest.approx(taken, rel=6e-3)
        assert f"{model}: a token takes {token:,} bytes." in words["words"], state
        assert f" {weights / token:,.0f} tokens, in all" in words["words"], state
        rows = [(token * 2**i * batch, weights) for i in range(7, 18)]
        near(columns(curve), torch.tensor(rows, dtype=torch.float64).log10())
        [x, *_] = figure_walk.points(curve["paths"]["mark"])
        assert x == pytest.approx(10 * (math.log2(length) - 7), abs=0.02)
        seen.add(model)
    assert len(seen) >= 3


def test_chapter_9_works_out_the_cache_of_any_model(figure):
    """Typed by key; bytes by the formula, in Python's whole numbers."""
    element, _ = figure("09_kv_cache", "The cache of your own model")
    page, out = element.page, element.locator("output")
    names = ("n_layers", "n_kv_heads", "d_k", "length", "batch")

    def bytes_shown():
        exact = element.locator("dd small").text_content()
        return int(exact.replace(",", "").removesuffix(" bytes"))

    for numbers, kind, size in (
        ((61, 7, 192, 100_003, 3), "float16", 2),
        ((1, 1, 1, 1, 1), "8 bits", 1),
        ((128, 128, 512, 1_000_000, 128), "float32", 4),
    ):
        for name, number in zip(names, numbers, strict=True):
            element.locator(f"[data-field={name}]").focus()
            page.keyboard.press("Control+a")
            page.keyboard.type(str(number))
        element.locator("select[data-field]").select_option(label=kind)
        layers, heads, d_k, length, batch = numbers
        assert bytes_shown() == 2 * layers * heads * d_k * length * batch * size
        assert f"{batch:,} sequences of {length:,} tokens" in out.text_content()
    element.locator("[data-preset]").select_option(label="Llama 2 70B")
    shape = [element.locator(f"[data-field={name}]").input_value() for name in names]
    assert shape[:3] == ["80", "8", "128"]
    assert bytes_shown() == 2 * 80 * 8 * 128 * 1_000_000 * 128 * 4


def test_chapter_11_shows_tiles_in_order(figure):
    """Every tile of 4 by 4 in reading order; with the flag, none above the diagonal."""
    element, data = figure("11_flash", "Sixteen tiles, or ten")
    seen = set()
    for state, (words, tiles, numbers) in figure_walk.walk(element, data):
        step, causal = settings(data, state)
        step = int(step.split()[0])
        real = [
            (i, j) for i in range(4) for j in range(4 if causal == "off" else i + 1)
        ]
        marks = []
        for place in ((i, j) for i in range(4) for j in range(4)):
            at = real.index(place) + 1 if place in real else None
            marks.append(
                "–" if at is None else "✓" if at < step else "●" if at == step else "·"
            )
        assert columns(tiles) == marks, state
        near(numbers["values"], [16 * min(step, len(real)), 16, 256])
        if step > len(real):
            assert "All 10 tiles are done; 6 were never" in words["words"]
        else:
            i, j = real[step - 1]
            place = f"queries {4 * i} to {4 * i + 3}, keys {4 * j} to {4 * j + 3}"
            assert place in words["words"]
            edge = causal == "on" and i == j
            assert ("the edge runs through it" in words["words"]) == edge, state
        seen.add(state)
    assert len(seen) == 32


def test_chapter_11_shows_one_query_reading_its_keys(figure):
    """Sums over the keys read so far, in Python's own numbers, in both orders."""
    element, data = figure("11_flash", "One query reads twelve keys")
    scores = [0.4, 1.1, -0.6, 1.9, 0.2, 2.6, -1.0, 0.9, 1.4, 3.1, 0.0, 2.2]
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0, 5.0, 8.0]
    orders = {"left to right": range(12), "right to left": range(11, -1, -1)}
    seen = set()
    for state, shown in figure_walk.walk(element, data, most=20, few=20):
        words, bars, seen_values, masses, numbers = shown
        near(columns(seen_values), values)
        tiles, order, hide = settings(data, state)
        hidden = {0, 1, 2} if hide == "on" else set()
        tiles = int(tiles.split()[0])
        before = set(list(orders[order])[: 3 * max(tiles - 1, 0)]) - hidden
        read = set(list(orders[order])[: 3 * tiles]) - hidden
        near(columns(bars), scores)
        top = max((scores[j] for j in read), default=0.0)
        mass = [math.exp(scores[j] - top) if j in read else 0.0 for j in range(12)]
        near(columns(masses), mass)
        total, mixed = sum(mass), sum(m * v for m, v in zip(mass, values, strict=True))
        if not read:
            assert numbers["values"] == ["−∞", "0.000", "0.000", "0.000"], state
        else:
            expected = [top, total, mixed, mixed / total]
            found = [float(x.replace("−", "-")) for x in numbers["values"]]
            assert found == pytest.approx(expected, abs=6e-4), state
        if not before and read:
            assert f"brings the first maximum, {top:.3f}" in words["words"], state
        elif before and max(scores[j] for j in before) < top:
            old = max(scores[j] for j in before)
            assert f"multiplied by {math.exp(old - top):.3f}." in words["words"], state
        elif tiles:
            text = "hides all its keys" if before == read else "no larger score"
            assert text in words["words"], state
        seen.add((tiles, order, hide))
    assert len(seen) >= 15


def test_chapter_12_shows_blocks_taken_shared_copied_and_freed(figure):
    """The same events with lists of tokens in blocks, and the lowest number first."""
    element, data = figure("12_paged", "Eight blocks, step by step")
    rows = []  # lists of (row's own numbers of blocks, its length)

    def in_use():
        return {b for numbers, _ in rows for b in numbers}

    def lowest(taken):
        return min(set(range(8)) - taken)

    def write(which, n):
        """Whoever shares a half-full tail copies it first, but for the last."""
        old, taken, left = in_use(), set(in_use()), [b for x, _ in rows for b in x]
        for i in which:
            numbers, length = rows[i]
            if length % 4 and left.count(numbers[-1]) > 1:
                left.remove(numbers[-1])
                numbers[-1] = lowest(taken)
                taken.add(numbers[-1])
        ends = {i: -(-(rows[i][1] + n) // 4) for i in which}
        while any(len(rows[i][0]) < ends[i] for i in which):
            for i in which:
                if len(rows[i][0]) < ends[i]:
                    rows[i][0].append(lowest(taken))
                    taken.add(rows[i][0][-1])
        for i in which:
            rows[i][1] += n
        assert old <= taken

    def snapshot():
        readers = [[0] * 4 for _ in range(8)]
        for numbers, length in rows:
            for p in range(length):
                readers[numbers[p // 4]][p % 4] += 1
        held = sum(1 for row in readers for n in row if n)
        table = [[*numbers, *[None] * (4 - len(numbers))] for numbers, _ in rows]
        table = table or [[None] * 4]
        return readers, table, [
            8 - len(in_use()), sum(n for _, n in rows), held, 4 * len(in_use()) - held
        ]  # fmt: skip

    steps = [snapshot()]
    rows.append([[], 0])
    write([0], 6)
    steps.append(snapshot())
    rows.append([list(rows[0][0]), 6])
    steps.append(snapshot())
    write([0, 1], 1)
    steps.append(snapshot())
    write([0, 1], 2)
    steps.append(snapshot())
    rows.append([[], 0])
    write([2], 5)
    steps.append(snapshot())
    rows[0] = [list(rows[1][0]), rows[1][1]]
    steps.append(snapshot())
    write([0, 1], 1)
    steps.append(snapshot())
    del rows[2]
    steps.append(snapshot())
    rows[:] = [[numbers[:2], 5] for numbers, _ in rows]
    steps += [snapshot()] * 2  # asking for too much changes nothing
    rows.clear()
    steps.append(snapshot())

    seen = set()
    for state, panels in figure_walk.walk(element, data, most=20, few=20):
        words, slots, table, numbers = panels
        [step] = settings(data, state)
        expected = steps[int(step.split()[0]) - 1]
        readers = [len(text.strip("○·")) for text in columns(slots)]
        assert readers == [n for row in expected[0] for n in row], state
        held = {b for row in expected[1] for b in row if b is not None}
        for block, row in enumerate(slots["rows"][1:]):
            count = sum(block in numbers for numbers in expected[1])
            assert row[0] == (
                f"block {block}, {count or 'no'} reader{'s' * (count > 1)}"
            )
            kinds = slots["marks"][4 * block : 4 * block + 4]
            assert (set(kinds) == {"state "}) == (block not in held), state
            shared = {
                mark for mark, text in zip(kinds, row[1:], strict=True) if text[1:]
            }
            assert shared <= {"state key"}, state
        copied = "state accent" in slots["marks"]
        assert copied == bool(
            re.search("cop(?:ies|ied) what|copied again", words["words"])
        )
        shown = [text for text in columns(table) if text.strip()]
        near(shown, [b for row in expected[1] for b in row if b is not None])
        near(numbers["values"], expected[2])
        if "blocks needed" in words["words"]:
            needed, free = re.findall(
                r"(\d+) blocks needed, (\d+) free", words["words"]
            )[0]
            assert (int(needed), int(free)) == (2 * (-(-29 // 4) - 2) + 1, 6)
        seen.add(step)
    assert len(seen) == len(steps) == 12


def test_chapter_13_shows_the_schedule(figure):
    """From the formula: a line up to the end of the warm-up, then one over a root."""
    element, data = figure("13_training", "The paper's schedule")
    seen = set()
    for state, (words, curve, numbers) in figure_walk.walk(element, data):
        width, warmup = (int(text.replace(",", "")) for text in settings(data, state))
        top = 1e4 / math.sqrt(width * warmup)
        rate = lambda s, w=warmup, top=top: top * min(s / w, (w / s) ** 0.5)
        updates = [int(row[0].replace(",", "")) for row in curve["rows"][1:]]
        near(columns(curve), [rate(s) for s in updates])
        near(numbers["values"], [rate(1000), rate(100_000)])
        assert f"grows for {warmup:,} updates" in words["words"], state
        assert f"peak of {rate(warmup):.3f} in" in words["words"], state
        assert f"after {4 * warmup:,} updates" in words["words"], state
        assert rate(4 * warmup) == pytest.approx(rate(warmup) / 2)
        [x, *_] = figure_walk.points(curve["paths"]["mark"])
        assert x == pytest.approx(100 * (warmup - 1) / 19_999, abs=0.02)
        seen.add((width, warmup))
    assert len(seen) >= 20
