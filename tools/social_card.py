"""Draw the picture that shared links show, and the icon for a phone's home screen.

    python tools/social_card.py      needs Chromium; the results are committed

The card is a page of its own, drawn in the book's type and colours; its map is the
attention of the copy model of chapter 14 while it copies a word.
"""

import argparse
import io
import shutil
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
THEME = ROOT / "book" / "_theme"
CARD, ICON = (1200, 630), (180, 180)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TEX = r"\operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right)V"
CODE = """\
output = torch.softmax(query @ key.mT / math.sqrt(d_k), dim=-1) @ value
assert torch.allclose(output, F.scaled_dot_product_attention(query, key, value))\
"""

STYLE = """
body { margin: 0; width: 1200px; height: 630px; box-sizing: border-box;
  padding: 56px 66px 48px; border-bottom: 14px solid #0072b2; background: #fdfcf9;
  display: grid; grid-template-columns: 1fr auto; column-gap: 50px;
  font-family: "Source Serif 4"; color: #24211d; }
h1 { font-size: 74px; line-height: 1.04; margin: 0; letter-spacing: -.015em; }
p { font-size: 29px; line-height: 1.35; margin: 22px 0 0; color: #5a554d; }
.katex { font-size: 43px; }
.math { margin: 34px 0 22px; }
pre { grid-column: 1 / -1; align-self: end; font: 21px/1.5 "Liberation Mono", monospace;
  margin: 0; padding: 16px 20px; background: #f2efe7; border-left: 5px solid #b9a98a; }
table { border-spacing: 5px; align-self: start; margin-top: 2px; }
td { width: 42px; height: 42px; border-radius: 5px; padding: 0;
  background: color-mix(in oklab, #0072b2 var(--w), #eef2f5); }
th { font: 600 24px "Source Serif 4"; color: #5a554d; padding: 0 6px; }
"""


def page(root: Path = ROOT) -> str:
    """The card as HTML."""
    sys.path.insert(0, str(root / "book" / "_ext"))
    import formulas
    import landing_figure

    word = landing_figure.WORDS[0]
    weights, _ = landing_figure.look(landing_figure.load_copy_model(), word)
    letters = [*word, ""]
    head = "".join(f"<th>{letter}</th>" for letter in ["", *letters[:-1]])
    rows = "".join(
        f"<tr><th>{letter}</th>"
        + "".join(f'<td style="--w:{100 * weight:.0f}%"></td>' for weight in row[:-1])
        + "</tr>"
        for letter, row in zip(letters[:-1], weights.tolist(), strict=False)
    )
    sheets = "".join(
        f'<link rel="stylesheet" href="{(THEME / name).as_uri()}">'
        for name in ("katex/katex.min.css", "book.css")
    )
    return (
        f"<!doctype html><meta charset=utf-8>{sheets}<style>{STYLE}</style>"
        "<div><h1>Attention,<br>Line by Line</h1>"
        "<p>“Attention Is All You Need”<br>as an executable book</p>"
        f'<div class="math">{formulas.render(TEX, False)["html"]}</div></div>'
        f"<table><tr>{head}</tr>{rows}</table><pre>{escape(CODE)}</pre>"
    )


def icon() -> str:
    svg = (THEME / "favicon.svg").read_text(encoding="utf-8")
    svg = svg.replace('rx="7"', "")  # a phone rounds the corners itself
    return f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{svg}"


def shot(browser, html: str, size: tuple[int, int], file: Path) -> None:
    """Store what a browser draws of a page, in at most 256 colours."""
    from PIL import Image

    source = file.with_suffix(".html")
    source.write_text(html, encoding="utf-8")
    tab = browser.new_page(viewport={"width": size[0], "height": size[1]})
    tab.goto(source.as_uri())
    tab.evaluate("document.fonts.ready")
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    picture.quantize(256, method=Image.Quantize.MEDIANCUT).save(file, optimize=True)
    source.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=THEME)
    folder = parser.parse_args().to
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox"]
        )
        shot(browser, page(), CARD, folder / "social-card.png")
        shot(browser, icon(), ICON, folder / "apple-touch-icon.png")
        browser.close()


if __name__ == "__main__":
    main()
