"""The live model of chapter 14: its numbers beside PyTorch's, and what a reader does.

The engine is compared on the page of a reader's own notebook, with style, script and
weights in the output; what concerns loading is tested on the book's page.
"""

import json
import os
import re
from functools import partial

import pytest
import torch
from visits import AXE, LOOK, TAGS, Visitor

from aiayn import CopyTask, Transformer, exact_match, record_attention
from aiayn.book.live import (
    asset,
    live_model,
    rounded_model,
    weights_file,
    weights_script,
)
from aiayn.copy_task import held_out_set
from aiayn.scaled_dot_product import fused_attention
from aiayn.tokens import BOS, EOS

PAGE = "notebooks/14_copy_task.html"
LETTERS = "abcdefghij"
NAMES = {0: "pad", BOS: "start", EOS: "end"} | {
    3 + i: letter for i, letter in enumerate(LETTERS)
}
KINDS = ("encoder_layers", "self_attention"), ("decoder_layers", "self_attention")
KINDS += (("decoder_layers", "cross_attention"),)


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """A folder with a page that holds the figure as a reader's notebook shows it."""
    before = os.environ.pop("AIAYN_FIGURES", None)
    output = live_model()._repr_mimebundle_()["text/html"]
    if before is not None:
        os.environ["AIAYN_FIGURES"] = before
    folder = tmp_path_factory.mktemp("live")
    (folder / "live.html").write_text(
        '<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Live</title>'
        "<style>html[data-theme=dark] { background: #15181c; color: #dedbd5; }</style>"
        f"<main><h1>Live</h1>{output}</main></html>",
        encoding="utf-8",
    )
    return folder


@pytest.fixture
def live(tab, demo):
    """The figure at work."""
    tab.goto((demo / "live.html").as_uri())
    tab.locator("aiayn-live[data-ready]").wait_for()
    return tab.locator("aiayn-live")


def words(live):
    return live.locator(".words").text_content()


def written(live):
    return live.locator("[data-side=written]:not(:disabled)").all_text_contents()


def run(live, source, **knobs):
    """What the engine gives: maps, logits, tokens written, probabilities."""
    return runs(live, [source], [knobs])[0]


def runs(live, sources, settings):
    """Run the engine for each source with its knobs."""
    text = live.evaluate(
        """(figure, [sources, settings]) => JSON.stringify(sources.map((source, i) => {
          const silenced = new Set(settings[i].silenced);
          const run = figure.model.run(source, { ...settings[i], silenced });
          const lists = (rows) => rows.map((row) => [...row]);
          return {
            written: run.written,
            logits: lists(run.logits),
            chances: lists(run.chances),
            maps: Object.fromEntries(Object.entries(run.maps).map(
              ([name, heads]) => [name, heads.map(lists)])),
          };
        }))""",
        [sources, settings],
    )
    return json.loads(text)


# ---- the same numbers as in PyTorch ------------------------------------------------
def sequences():
    """100 sources, five of each length from 1 to 20, the end included."""
    generator = torch.Generator().manual_seed(14)
    return [
        [*torch.randint(3, 13, (1 + i % 20,), generator=generator).tolist(), EOS]
        for i in range(100)
    ]


@pytest.fixture(scope="session")
def rounded():
    return rounded_model()


@torch.no_grad()
def reference(model, source, tokens, silenced=()):
    """Logits and maps of PyTorch's model, reading what the browser has written."""
    hooks = []
    for name in silenced:
        path, head = name.rsplit(".", 1)
        of_head = slice(16 * int(head), 16 * int(head) + 16)

        def silence(_module, inputs, of_head=of_head):
            joined = inputs[0].clone()
            joined[..., of_head] = 0  # its output, before the output projection
            return (joined,)

        projection = model.get_submodule(path).output_projection
        hooks.append(projection.register_forward_pre_hook(silence))
    begun = torch.tensor([[BOS, *tokens[:-1]]])
    with record_attention(model) as recorded:
        logits = model(torch.tensor([source]), begun)[0]
    for hook in hooks:
        hook.remove()
    return logits, {name: weights[0][0] for name, weights in recorded.items()}


def changed(model, **changes):
    """The same weights in another model, in float64."""
    attend = changes.pop("attend", fused_attention)
    config = type(model.config)(**{**vars(model.config), **changes})
    other = Transformer(config, attend=attend).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def one_head(kind, i):
    stack, attention = KINDS[kind]
    return [f"{stack}.{i // 4 % 2}.{attention}.{i % 4}"]


BREAKS = {
    "nothing": lambda i: {},
    "positions": lambda i: {"positions": False},
    "scaling": lambda i: {"scaled": False},
    "an encoder head": lambda i: {"silenced": one_head(0, i)},
    "a decoder head": lambda i: {"silenced": one_head(1, i)},
    "a cross-attention head": lambda i: {"silenced": one_head(2, i)},
    "all at once": lambda i: {
        "positions": False,
        "scaled": False,
        "silenced": one_head(1, i) + one_head(2, i),
    },
}


@pytest.mark.parametrize("broken", BREAKS)
def test_logits_and_every_map_are_pytorch_s(live, rounded, broken):
    sources, settings = sequences(), [BREAKS[broken](i) for i in range(100)]
    model = changed(
        rounded,
        positions="none" if settings[0].get("positions") is False else "sinusoidal",
        attend=partial(
            fused_attention, scale=1.0 if settings[0].get("scaled") is False else None
        ),
    )
    furthest, errors = 0, 0
    found = runs(live, sources, settings)
    for source, knobs, got in zip(sources, settings, found, strict=True):
        tokens = got["written"]
        logits, maps = reference(model, source, tokens, knobs.get("silenced", ()))
        assert logits.argmax(dim=-1).tolist() == tokens
        assert EOS not in tokens[:-1]
        assert tokens[-1] == EOS or len(tokens) == len(source) + 1
        assert len(maps) == len(got["maps"]) == 6
        pairs = [(logits, got["logits"]), (logits.softmax(dim=-1), got["chances"])]
        for name, weights in maps.items():
            for head in range(4):
                rows = got["maps"][name][head]
                square = [row + [0] * (weights.shape[-1] - len(row)) for row in rows]
                pairs.append((weights[head], square))
        for exact, numbers in pairs:
            numbers = torch.tensor(numbers, dtype=torch.float64)
            assert numbers.shape == exact.shape
            furthest = max(furthest, (exact - numbers).abs().max().item())
        errors += tokens != source
    assert furthest < 1e-4
    assert (errors == 0) == (broken == "nothing")


def test_both_sides_round_the_weights_alike(live, rounded):
    text = live.evaluate(
        """figure => JSON.stringify(Object.entries(figure.model.tensors).map(
          ([name, numbers]) => [name, [...numbers]]))"""
    )
    theirs, ours = dict(json.loads(text)), rounded.state_dict()
    assert list(theirs) == list(ours)
    for name, tensor in ours.items():
        assert theirs[name] == tensor.flatten().tolist(), name


def test_the_rounded_model_still_copies(rounded):
    some = held_out_set(CopyTask())[::20]
    assert exact_match(rounded.float(), CopyTask(), some).all()
    rounded.double()


def test_a_whole_decode_feels_instant(live):
    source = [3 + 7 * i % 10 for i in range(20)] + [EOS]
    assert run(live, source)["written"] == source
    times = live.evaluate(
        """(figure, source) => Array.from({ length: 15 }, () => {
          const start = performance.now();
          figure.model.run(source);
          return performance.now() - start;
        })""",
        source,
    )
    assert min(times) < 100


# ---- what a reader does ------------------------------------------------------------
def test_what_is_typed_is_copied(live):
    for text, tokens in {
        "cab": "cab",
        "J, i H": "jih",
        "a": "a",
        "abcdefghijabcdefghij": "abcdefghijabcdefghij",
    }.items():
        live.locator("[name=sequence]").fill(text)
        assert written(live) == [*tokens, "end"]
        assert live.locator(".verdict").text_content() == (
            f"All {len(tokens) + 1} tokens are right, the end included."
        )
        pairs = live.locator(".pair")
        assert pairs.count() == len(tokens) + 2
        source = live.locator("[data-side=source]").all_text_contents()
        assert source == [*tokens, "end"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Type at least one letter from a to j."),
        ("  ", "Type at least one letter from a to j."),
        ("cake", "“k” is not a symbol: type letters from a to j."),
        ("<b>", "“<” is not a symbol: type letters from a to j."),
        ("a1", "“1” is not a symbol: type letters from a to j."),
        ("a" * 21, "21 symbols: this model was trained on 1 to 20."),
    ],
)
def test_bad_input_gets_a_clear_message(live, text, said):
    before, field = written(live), live.locator("[name=sequence]")
    field.fill(text)
    told = live.locator(".status").text_content()
    assert told == f"{said} Shown is still jadeface."
    assert field.get_attribute("aria-invalid") == "true"
    assert written(live) == before
    field.fill("bad")
    assert field.get_attribute("aria-invalid") == "false"
    assert written(live) == [*"bad", "end"]


def test_shuffle_keeps_the_symbols_and_another_draws_new_ones(live):
    field = live.locator("[name=sequence]")
    before = field.input_value()
    live.locator("[data-do=shuffle]").click()
    after = field.input_value()
    assert after != before
    assert sorted(after) == sorted(before)
    assert written(live) == [*after, "end"]
    drawn = set()
    for _ in range(12):
        live.locator("[data-do=random]").click()
        drawn.add(field.input_value())
        assert set(field.input_value()) <= set(LETTERS)
        assert 1 <= len(field.input_value()) <= 20
        assert len(written(live)) == len(field.input_value()) + 1
    assert len(drawn) > 8
    field.fill("aaa")
    live.locator("[data-do=shuffle]").click()  # there is only one order
    assert field.input_value() == "aaa"


def test_stepping_by_keyboard_alone(live, tab):
    live.locator("[name=sequence]").focus()
    for _ in range(12):
        tab.keyboard.press("Tab")
        if live.evaluate("f => document.activeElement.name === 'step'"):
            break
    else:
        pytest.fail("Tab does not reach the steps")
    tab.keyboard.press("Home")
    slider = live.locator("[name=step]")
    assert (
        slider.get_attribute("aria-valuetext") == "Step 0 of 11: the source, embedded"
    )
    assert words(live).startswith(
        "Before the first layer each source token is a vector"
    )
    drawn = "figure => figure.rows().length"
    assert (written(live), live.evaluate(drawn)) == ([], 0)
    for layer in (1, 2):
        tab.keyboard.press("ArrowRight")
        said = slider.get_attribute("aria-valuetext")
        assert said == f"Step {layer} of 11: encoder layer {layer}"
        assert f"of encoder layer {layer}, token" in words(live)
        assert (written(live), live.evaluate(drawn)) == ([], 9)
    for i, letter in enumerate([*"jadeface", "end"], start=1):
        tab.keyboard.press("ArrowRight")
        assert written(live) == [*"jadeface", "end"][:i]
        assert live.evaluate(drawn) == i
        said = "the end" if letter == "end" else letter
        assert words(live).startswith(f"While token {i}, {said}, is written, ")
        caption = live.locator(".chances caption").text_content()
        assert caption == f"Probability of token {i}"
    tab.keyboard.press("ArrowRight")
    assert slider.input_value() == "11"
    live.locator("[data-do=back]").focus()
    tab.keyboard.press("Enter")
    assert slider.input_value() == "10"
    live.locator("[data-do=next]").focus()
    tab.keyboard.press("Space")
    assert slider.input_value() == "11"


def test_play_runs_through_and_stops(live, tab):
    tab.clock.install()
    live.locator("[data-do=play]").click()
    assert live.locator("[name=step]").input_value() == "0"
    assert live.locator("[data-do=play]").text_content() == "Pause"
    tab.clock.run_for(700 * 3)
    live.locator("[data-do=play]").click()
    paused = live.locator("[name=step]").input_value()
    assert paused in ("3", "4")  # real time goes on as well
    tab.clock.run_for(7000)
    assert live.locator("[name=step]").input_value() == paused
    live.locator("[data-do=play]").click()
    tab.clock.run_for(7000)
    assert live.locator("[name=step]").input_value() == "11"
    assert live.locator("[data-do=play]").text_content() == "Play"


def looks(live, row, name="decoder_layers.1.cross_attention", head=1):
    """The weights that a row of a map should show, from a run of the engine."""
    symbols = live.locator("[name=sequence]").input_value()
    found = run(live, [3 + LETTERS.index(s) for s in symbols] + [EOS])
    return found["maps"][name][head][row]


def shades(live, side):
    return [
        float(e.evaluate("e => e.style.getPropertyValue('--w')")[:-1]) / 100
        for e in live.locator(f"[data-side={side}]").all()
    ]


def test_a_token_under_the_pointer_or_the_focus_shows_where_it_looks(live, tab):
    for i, point in enumerate(("hover", "focus", "hover", "focus")):
        getattr(live.locator(f"[data-side=written][data-at='{i + 1}']"), point)()
        weights = looks(live, i + 1)
        most = max(range(9), key=lambda j: weights[j])
        assert f"looks most at token {most + 1} of the source" in words(live)
        assert f"({weights[most]:.2f})" in words(live)
        assert shades(live, "source") == pytest.approx(weights, abs=0.0051)
        outline = live.locator(".plan .row").first.get_attribute("d")
        assert outline == f"M0 {i + 1}h9v1h-9z"
        pressed = live.locator(".tape [aria-pressed=true]")
        assert pressed.get_attribute("data-at") == str(i + 1)
    assert live.locator(".words").get_attribute("aria-live") == "polite"


def test_the_arrow_keys_walk_over_tokens_and_heads(live, tab):
    at = """() => {
      const { side, at, attention, head } = document.activeElement.dataset;
      return side ? [side, +at] : [attention, +head];
    }"""
    assert live.locator(".tape button[tabindex='0']").count() == 1
    live.locator(".tape button[tabindex='0']").focus()
    for key, place in {
        "ArrowRight": ["written", 4],
        "Home": ["written", 0],
        "ArrowUp": ["source", 0],
        "End": ["source", 8],
        "ArrowDown": ["written", 8],
    }.items():
        tab.keyboard.press(key)
        assert tab.evaluate(at) == place, key
        assert live.locator(".tape button[tabindex='0']").count() == 1
    assert live.locator(".heads button[tabindex='0']").count() == 1
    live.locator(".heads button[tabindex='0']").focus()
    for key, place in {
        "ArrowLeft": ["decoder_layers.1.cross_attention", 0],
        "ArrowUp": ["decoder_layers.1.self_attention", 0],
        "End": ["decoder_layers.1.self_attention", 3],
    }.items():
        tab.keyboard.press(key)
        assert tab.evaluate(at) == place, key
        name = live.locator(".map .name").text_content()
        said = f"head {place[1] + 1} of decoder layer 2"
        assert name.endswith(said)
        assert said in words(live)
        assert live.locator(".heads [aria-pressed=true]").count() == 1


def test_a_token_that_is_pressed_shows_a_head_in_which_it_looks(live):
    live.locator("[data-side=source][data-at='2']").click()
    assert words(live).startswith(
        "In self-attention head 2 of encoder layer 2, token 3 of the source, d,"
    )
    weights = looks(live, 2, "encoder_layers.1.self_attention")
    assert f"({max(weights):.2f})" in words(live)
    live.locator("[data-side=written][data-at='8']").click()
    assert words(live).startswith("While token 9, the end, is written, cross-attention")


def test_the_pointer_reads_a_cell_of_the_map(live, tab):
    plan = live.locator(".plan")
    plan.scroll_into_view_if_needed()
    x, y = plan.evaluate(
        """plan => {
          const { x, y } = new DOMPoint(6.5, 7.5).matrixTransform(plan.getScreenCTM());
          return [x, y];
        }"""
    )
    tab.mouse.move(x, y)
    weight = looks(live, 7)[6]
    assert words(live) == (
        "While token 8, e, is written, cross-attention head 2 of decoder layer 2 gives "
        f"token 7 of the source, c the weight {weight:.2f}."
    )
    tab.mouse.move(0, 0)
    assert "looks most" in words(live)


def test_probabilities_sum_to_one(live):
    for broken in (False, True):
        live.locator("[name=scaled]").set_checked(not broken)
        result = live.evaluate("figure => figure.result.chances.map(row => [...row])")
        for i, shares in enumerate(result):
            assert abs(sum(shares) - 1) < 1e-9
            live.locator(f"[data-side=written][data-at='{i}']").focus()
            shown = {
                int(row.get_attribute("data-token")): row.locator("td").text_content()
                for row in live.locator(".chances tr").all()
            }
            assert len(shown) == 13
            for token, text in shown.items():
                assert abs(float(text.split()[0]) - shares[token]) < 0.00501


# ---- breaking it -------------------------------------------------------------------
def check_errors(live, knobs):
    """Everything that is shown of a copy agrees with the engine's."""
    symbols = live.locator("[name=sequence]").input_value()
    source = [3 + LETTERS.index(s) for s in symbols] + [EOS]
    tokens = run(live, source, **knobs)["written"]
    assert written(live) == [NAMES[token] for token in tokens]
    wrong = [
        int(e.get_attribute("data-at")) for e in live.locator(".tape .wrong").all()
    ]
    expected = [*source, *[None] * len(tokens)]
    assert wrong == [i for i, t in enumerate(tokens) if t != expected[i]]
    right = len(tokens) - len(wrong)
    verdict = live.locator(".verdict").text_content()
    if tokens == source:
        assert "all 9 tokens are right" in verdict.lower()
    else:
        assert f"{right} of {len(source)} tokens are right" in verdict
    if wrong:
        label = live.locator(f"[data-side=written][data-at='{wrong[0]}']")
        assert ", wrong, expected " in label.get_attribute("aria-label")
        assert f"the first error is token {wrong[0] + 1}" in verdict
        caption = live.locator(".chances caption").text_content()
        assert caption == f"Probability of token {wrong[0] + 1}"
        if wrong[0] < len(source):
            missed = live.locator(f".chances [data-token='{source[wrong[0]]}']")
            assert missed.locator("td").text_content().endswith(" expected")
    assert ("did not stop" in verdict) == (tokens[-1] != EOS)
    assert live.locator(".score").text_content() == (
        f"{right} of {len(source)} tokens right"
    )
    return verdict


def test_breaking_shows_errors_and_repairing_mends_them(live):
    live.locator("[name=positions]").uncheck()
    assert check_errors(live, {"positions": False}).startswith("Without positions: ")
    tokens = written(live)
    live.locator("[data-do=shuffle]").click()
    assert written(live) == tokens  # a bag has no order
    live.locator("[name=scaled]").uncheck()
    verdict = check_errors(live, {"positions": False, "scaled": False})
    assert verdict.startswith("Without positions and the scaling: ")
    live.locator("[data-do=repair]").click()
    assert live.locator(".break :checked").count() == 2
    assert "All 9 tokens are right" in check_errors(live, {})

    head = "decoder_layers.1.cross_attention"
    live.locator("[name=sequence]").fill("hagbedci")
    live.locator("[name=head]").uncheck()
    verdict = check_errors(live, {"silenced": [f"{head}.1"]})
    assert verdict.startswith("Without cross-attention head 2 of decoder layer 2: ")
    button = live.locator(f"[data-attention='{head}'][data-head='1']")
    assert button.get_attribute("aria-label").endswith(", silenced")
    assert "It is silenced: what it reads is lost." in words(live)
    live.locator(f"[data-attention='{head}'][data-head='2']").click()
    assert live.locator("[name=head]").is_checked()
    live.locator("[name=head]").uncheck()
    check_errors(live, {"silenced": [f"{head}.1", f"{head}.2"]})
    assert live.locator(".tape .wrong").count() > 0
    button.click()
    assert not live.locator("[name=head]").is_checked()
    live.locator("[name=head]").check()
    check_errors(live, {"silenced": [f"{head}.2"]})


# ---- hosts -------------------------------------------------------------------------
SHOWN = """figure => ['.tape', '.verdict', '.words', '.chances', '.where', '.map .name',
  '.map table', '.heads', '.score', '.plan'].map(selector => {
    const part = figure.querySelector(selector);
    return [part.textContent, [...part.querySelectorAll('button')].map(
      button => [button.ariaLabel, button.ariaPressed, button.tabIndex]),
      [...part.querySelectorAll('path')].map(path => path.outerHTML)];
  })"""


def test_without_script_the_page_holds_a_worked_state(browser, site, rounded):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / PAGE).as_uri())
    figure = page.locator("aiayn-live")
    assert figure.locator("fieldset:not(:disabled)").count() == 0
    assert "A stored run." in figure.locator(".status").text_content()
    source = [3 + LETTERS.index(s) for s in "jadeface"] + [EOS]
    assert figure.locator("[data-side=source]").all_text_contents() == [
        NAMES[token] for token in source
    ]
    assert written(figure) == [NAMES[token] for token in source]
    logits, maps = reference(rounded, source, source)
    weights = maps["decoder_layers.1.cross_attention"][1]
    rows = figure.locator(".map tbody tr").all()
    for row, exact in zip(rows, weights.tolist(), strict=True):
        numbers = [float(text) for text in row.locator("td").all_text_contents()]
        assert numbers == pytest.approx(exact, abs=0.00501)
    chances = logits.softmax(dim=-1)[3]
    for row in figure.locator(".chances tr").all():
        exact = chances[int(row.get_attribute("data-token"))].item()
        assert float(row.locator("td").text_content()) == pytest.approx(exact, abs=5e-3)
    assert f"e ({weights[3, 3]:.2f})" in words(figure)
    context.close()


def test_the_model_loads_when_it_comes_near_and_changes_nothing(tab, site):
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((site / PAGE).as_uri(), wait_until="load")
    figure = tab.locator("aiayn-live")
    assert not [url for url in asked if "copy_model" in url]
    figure.evaluate("figure => (figure.querySelector('details').open = true)")
    before, height = figure.evaluate(SHOWN), figure.bounding_box()["height"]
    assert figure.locator(".status").text_content() == "A stored run."
    figure.scroll_into_view_if_needed()
    tab.locator("aiayn-live[data-ready]").wait_for()
    assert len([url for url in asked if "copy_model" in url]) == 1
    assert figure.evaluate(SHOWN) == before
    assert abs(figure.bounding_box()["height"] - height) < 1
    assert figure.locator("fieldset:disabled").count() == 0


def test_a_reader_who_saves_data_is_asked(browser, site):
    context = browser.new_context()
    context.add_init_script(
        "Object.defineProperty(navigator, 'connection', { value: { saveData: true } })"
    )
    page = context.new_page()
    page.goto((site / PAGE).as_uri())
    figure = page.locator("aiayn-live")
    figure.scroll_into_view_if_needed()
    button = figure.get_by_role("button", name="Run the model here (590 kB)")
    button.wait_for()
    assert figure.get_attribute("data-ready") is None
    button.click()
    page.locator("aiayn-live[data-ready]").wait_for()
    assert button.is_hidden()
    context.close()


def test_weights_that_do_not_come_are_reported(browser, site):
    context = browser.new_context()
    context.route("**/copy_model*", lambda route: route.abort())
    page = context.new_page()
    page.goto((site / PAGE).as_uri())
    figure = page.locator("aiayn-live")
    figure.scroll_into_view_if_needed()
    figure.get_by_text("The model could not be loaded.").wait_for()
    assert written(figure) == [*"jadeface", "end"]
    context.close()


def test_only_this_page_brings_the_model(site, pages):
    for page in pages:
        text = (site / page).read_text("utf8")
        wanted = page == PAGE
        assert (weights_file() in text) == wanted, page
        assert bool(re.search(r'<script[^>]*src="[^"]*live\.js', text)) == wanted, page
        assert bool(re.search(r'<link[^>]*href="[^"]*live\.css', text)) == wanted, page
        assert not (wanted and "data-aiayn" in text)


def test_weights_script_and_output_stay_small(site, monkeypatch):
    [weights] = (site / "_static").glob("copy_model.*.js")
    assert weights.read_text("utf8") == weights_script()
    assert weights.stat().st_size < 600_000
    assert len(asset("live.js").encode()) < 40_000
    monkeypatch.setenv("AIAYN_FIGURES", "external")
    longest = live_model(sequence="abcdefghij" * 2)
    stored = longest._repr_mimebundle_()["text/html"]
    assert len(stored.encode()) < 100_000
    assert "data-aiayn" not in stored


@pytest.mark.parametrize("sequence", ["", "cake", "a" * 21])
def test_a_sequence_that_was_never_learned_is_refused(sequence):
    with pytest.raises(ValueError, match="1 to 20 letters from a to j"):
        live_model(sequence=sequence)


def test_it_lives_in_a_sandboxed_frame_with_a_strict_policy(tab, demo):
    """As Colab shows an output: another origin, only inline style and script."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    inner = (demo / "live.html").read_text("utf8")
    inner = inner.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{head}')
    escaped = inner.replace("&", "&amp;").replace('"', "&quot;")
    tab.set_content(
        f'<iframe sandbox="allow-scripts" width="999" height="999" srcdoc="{escaped}">'
    )
    frame = tab.frame_locator("iframe")
    frame.locator("aiayn-live[data-ready]").wait_for()
    frame.locator("[name=sequence]").fill("headache")
    assert written(frame.locator("aiayn-live")) == [*"headache", "end"]
    frame.locator("[name=positions]").uncheck()
    assert frame.locator(".tape .wrong").count() > 0


def test_a_host_s_own_keys_do_not_fire(live, tab):
    tab.evaluate(
        "window.heard = [];addEventListener('keydown', e => heard.push(e.key))"
    )
    live.locator("[name=sequence]").focus()
    for key in ("d", "Enter", "ArrowDown"):
        tab.keyboard.press(key)
    live.locator(".tape button[tabindex='0']").focus()
    for key in ("ArrowDown", "j", "x"):
        tab.keyboard.press(key)
    assert tab.evaluate("heard") == []
    tab.keyboard.press("Control+k")  # the search of the book
    assert tab.evaluate("heard").count("k") == 1


def test_it_is_accessible_and_fits(browser, demo):
    with Visitor(browser, demo) as visitor:
        visit = visitor.visit("live.html")
    assert {mode: found for mode, found in visit.axe.items() if found} == {}
    assert visit.overflow == {390: [], 320: []}
    assert visit.messages == visit.outside == visit.failed == []


def test_broken_and_long_it_is_accessible_too(live, tab):
    live.locator("[name=sequence]").fill("abcdefghij" * 2)
    live.locator("details").evaluate("fold => (fold.open = true)")
    live.locator("[name=head]").uncheck()
    live.locator("[name=positions]").uncheck()
    live.locator("[name=sequence]").fill("cake")
    tab.evaluate(LOOK)
    tab.evaluate(AXE)
    tab.evaluate("look.prepareAxe()")
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            tab.evaluate("t => document.documentElement.dataset.theme = t", theme)
            assert tab.evaluate("look.runAxe", TAGS) == [], (width, theme)
    tab.set_viewport_size({"width": 320, "height": 900})
    assert tab.evaluate("look.overflow()") == []


def test_it_is_accessible_in_the_book(tab, site):
    tab.emulate_media(reduced_motion="reduce")
    tab.goto((site / PAGE).as_uri())
    figure = tab.locator("aiayn-live")
    figure.scroll_into_view_if_needed()
    tab.locator("aiayn-live[data-ready]").wait_for()
    figure.locator("[name=positions]").uncheck()
    figure.locator("[name=head]").uncheck()
    figure.locator("details").evaluate("fold => (fold.open = true)")
    tab.evaluate(AXE)
    look = """async (runOnly) => {
      const options = { runOnly, resultTypes: ["violations"], preload: false };
      const { violations } = await axe.run("aiayn-live", options);
      return violations.map(({ id, nodes }) => `${id} ${nodes[0].target}`);
    }"""
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            tab.evaluate("t => document.documentElement.dataset.theme = t", theme)
            assert tab.evaluate(look, TAGS) == [], (width, theme)
    tab.set_viewport_size({"width": 320, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 320


def test_a_finger_finds_its_target(live, tab):
    tab.set_viewport_size({"width": 320, "height": 900})
    live.locator("[name=sequence]").fill("abcdefghij" * 2)
    for target in live.locator("button, input").all():
        box = target.bounding_box()
        if box:
            assert box["height"] >= 24, target.evaluate("e => e.outerHTML")
            assert box["width"] >= 18, target.evaluate("e => e.outerHTML")


def test_the_dark_theme_recolours_and_nothing_moves(live, tab):
    tab.emulate_media(reduced_motion="reduce")
    colours = """figure => [...figure.querySelectorAll(
        '.tape button:not(:disabled), .words, .plan text, .plan path')].map(e => {
          const style = getComputedStyle(e);
          return [style.color, style.fill, style.backgroundColor].join();
        })"""
    before = live.evaluate(colours)
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    after = live.evaluate(colours)
    assert len(before) == len(after) > 0
    assert [a for a, b in zip(before, after, strict=True) if a == b] == []
    live.locator("[data-side=written][data-at='1']").hover()
    assert tab.evaluate("document.getAnimations().length") == 0


def test_paper_shows_the_state_and_no_controls(live, tab):
    tab.emulate_media(media="print")
    assert live.locator(".tape").is_visible()
    assert live.locator(".plan").is_visible()
    for control in live.locator("fieldset, details").all():
        assert control.is_hidden()
