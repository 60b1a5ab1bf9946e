"""The first page: what it is, a figure to touch and three doors, within one screen."""

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
import torch

import aiayn
from aiayn.copy_task import load_copy_model

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import landing_figure  # noqa: E402

FIGURE = ".landing aiayn-figure"


@pytest.fixture
def home(tab, site):
    tab.goto((site / "index.html").as_uri())
    tab.wait_for_selector(f"{FIGURE}[data-ready]")
    return tab


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (1440, 900)])
def test_everything_stands_within_one_screen(home, width, height):
    home.set_viewport_size({"width": width, "height": height})
    for part in ("h1", ".lede p", ".doors", f"{FIGURE} output", f"{FIGURE} table"):
        box = home.locator(f"article {part}").first.bounding_box()
        assert box["y"] >= 0, part
        assert box["y"] + box["height"] <= height, part
        assert box["x"] + box["width"] <= width, part
    doors = home.locator(".doors li > p > a:first-child")
    assert doors.all_inner_texts() == ["Read", "Run", "Import"]


def test_the_table_of_chapters_fits_a_phone(home):
    home.set_viewport_size({"width": 390, "height": 844})
    table = home.locator("#what-the-chapters-build table")
    box, room = table.bounding_box(), table.locator("..").bounding_box()
    assert box["width"] <= room["width"]
    cells = table.locator("td, th")
    assert cells.count() > 3 * 14
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    assert cells.evaluate_all(cut) == []


def test_the_doors_lead_where_they_say(home, site):
    doors = home.locator(".doors li > p > a:first-child").evaluate_all(
        "all => all.map(a => a.getAttribute('href'))"
    )
    assert doors == ["notebooks/01_recurrence.html", "#run", "#import"]
    # a door is its whole card
    card = home.locator(".doors li").nth(1).bounding_box()
    home.mouse.click(card["x"] + card["width"] - 8, card["y"] + card["height"] - 8)
    home.wait_for_url("**/index.html#run")


def shown(home):
    rows = home.locator(f"{FIGURE} tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].slice(1).map(cell => +cell.textContent))"
    )
    return torch.tensor(rows), home.locator(f"{FIGURE} output").inner_text()


def test_one_touch_changes_the_map_and_the_sentence(home):
    before, sentence = shown(home)
    assert (before.argmax(-1) == torch.arange(len(before))).all()
    assert "It writes “cabbage”" in sentence
    home.get_by_role("switch").click()
    after, said = shown(home)
    assert "cannot tell the two a’s and the two b’s apart" in said
    assert "it writes “ab”" in said
    assert torch.equal(after[:, 2], after[:, 3])  # the two b's
    home.get_by_label("facade").check()
    assert "the two a’s apart" in shown(home)[1]


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("word", landing_figure.WORDS)
def test_the_figure_shows_what_the_model_does(home, word, positions):
    """Against weights from queries and keys, and letters from repeated argmax."""
    home.get_by_label(word).check()
    if not positions:
        home.get_by_role("switch").click()
    model = load_copy_model()
    if not positions:
        nothing = lambda x, positions=None: x
        model.source_positions.forward = model.target_positions.forward = nothing
    tokens = [ord(letter) - ord("a") + 3 for letter in word]
    source = torch.tensor([[*tokens, aiayn.EOS]])
    target = torch.tensor([[aiayn.BOS, *tokens]])
    attention, seen = model.decoder_layers[-1].cross_attention, {}
    attention.register_forward_pre_hook(
        lambda module, given, named: seen.update(query=given[0], **named),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(source, target)
        query = attention.query_projection(seen["query"]).unflatten(-1, (4, 16))
        key = attention.key_projection(model.encode(source)).unflatten(-1, (4, 16))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4
        weights = scores.softmax(-1).mean(1)[0]
        written = [aiayn.BOS]
        while written[-1] != aiayn.EOS and len(written) < 20:
            memory = model.encode(source)
            logits = model.decode(torch.tensor([written]), memory, source)
            written.append(int(logits[0, -1].argmax()))
    cells, sentence = shown(home)
    assert (cells - 100 * weights).abs().max() <= 0.51
    letters = "".join(chr(t - 3 + ord("a")) for t in written[1:-1])
    assert f"writes “{letters}”" in sentence
    share = 100 * weights.diagonal().mean()
    assert f"{share:.0f} %" in sentence.replace("\u00a0", " ")


def test_a_model_of_which_the_sentences_are_not_true_stops_the_build():
    model = load_copy_model()
    weights, written = landing_figure.look(model, "decade")
    with pytest.raises(ValueError, match="does not look along decade: wrote dad"):
        landing_figure.sentence("decade", weights, "dad", True)
    with pytest.raises(ValueError, match="tells the ds of decade apart"):
        landing_figure.sentence("decade", weights, written, False)


def test_the_first_state_needs_no_script(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    assert "It writes “cabbage”" in page.locator(f"{FIGURE} output").inner_text()
    assert page.locator(f"{FIGURE} tbody td").count() == 64
    context.close()


def test_every_chapter_has_a_row_with_its_module(site, root):
    text = (site / "index.html").read_text("utf8")
    table = re.search(
        r"<table.*?</table>", text.split("What the chapters build")[-1], re.S
    )
    rows = re.findall(r"<tr.*?</tr>", table[0], re.S)[1:]
    notebooks = sorted(root.glob("notebooks/*.ipynb"))
    assert len(rows) == len(notebooks)
    for row, path in zip(rows, notebooks, strict=True):
        assert f'href="notebooks/{path.stem}.html"' in row
        sources = [cell.source for cell in nbformat.read(path, 4).cells]
        module = re.search(r"#\| default_exp (\w+)", "\n".join(sources))[1]
        assert re.sub(r"<[^>]+>", "", row).strip().endswith(f"aiayn.{module}")


def test_the_pdf_is_linked_where_it_is_published(site, root):
    """The build does not make it, so a link to a file would be dead at home."""
    import yaml

    base = yaml.safe_load((root / "_config.yml").read_text("utf8"))["html"]["baseurl"]
    assert f'href="{base}attention-line-by-line.pdf"' in (
        site / "index.html"
    ).read_text("utf8")
    steps = yaml.safe_load((root / ".github/workflows/book.yml").read_text("utf8"))
    run = json.dumps(steps)
    assert "cp _build/attention-line-by-line.pdf _build/html/" in run
