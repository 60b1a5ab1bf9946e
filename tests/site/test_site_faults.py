"""Faults planted in a copy of a page: what guards the book's pages finds each of them.

The copy without a fault passes all checks, so what they find is the fault.
"""

import os
from dataclasses import dataclass

import checks
import pytest
from visits import Visitor

PAGE = "book/errata.html"
END = "</article>"


def before_end(fault):
    return lambda text: text.replace(END, fault + END, 1)


def script(code):
    return before_end(f"<script>{code}</script>")


MOVE = """const move = () => document.querySelector("article")
    .insertAdjacentHTML("afterbegin", '<div style="height: 700px"></div>');
new PerformanceObserver((list) => {
    if (list.getEntriesByName("first-contentful-paint").length) setTimeout(move, 30);
}).observe({ type: "paint", buffered: true });"""


@dataclass
class Fault:
    plant: object  # the page's text -> its text with the fault
    check: object
    axe: bool = False


FAULTS = {
    "a picture from another host": Fault(
        before_end('<img alt="A picture" src="https://example.org/a.png">'),
        checks.requests,
    ),
    "a style sheet that is not there": Fault(
        lambda text: text.replace("book.all.css", "gone.css"), checks.requests
    ),
    "a message in the console": Fault(
        script("console.warn('careful')"), checks.console
    ),
    "an error of a script": Fault(script("undefined.name"), checks.console),
    "a formula that was not rendered": Fault(
        before_end(r'<p><span class="math">\(\fracc{1}{2}\)</span></p>'),
        checks.formulas,
    ),
    "a formula in the text": Fault(
        before_end(r"<p>So $$\frac{1}{2}$$ it is.</p>"), checks.formulas
    ),
    "a mark of the export": Fault(
        before_end("<pre>#| export\nx = 1</pre>"), checks.export_marks
    ),
    "a picture without words": Fault(
        before_end('<img src="../_static/favicon.svg">'), checks.accessibility, axe=True
    ),
    "text that is hard to see": Fault(
        before_end('<p style="color: #b0b0b0">Hard to see.</p>'),
        checks.accessibility,
        axe=True,
    ),
    "text that is hard to see in the dark": Fault(
        before_end(
            "<style>html[data-theme=dark] p:last-of-type { color: #555 }</style>"
            "<p>Hard to see.</p>"
        ),
        checks.accessibility,
        axe=True,
    ),
    "something wider than a phone": Fault(
        before_end('<div style="width: 330px; height: 1px; margin-left: 0"></div>'),
        checks.width,
    ),
    "a page that moves": Fault(script(MOVE), checks.shift),
    "a script of 120 kB": Fault(
        before_end('<script src="../_static/heavy.js"></script>'), checks.weight
    ),
    "thirty requests": Fault(
        before_end("".join(f'<img alt="A" src="{n}.svg">' for n in range(30))),
        checks.weight,
    ),
    "the figures' script without a figure": Fault(
        before_end('<script src="../_static/figures.js"></script>'), checks.figure_files
    ),
    "a level of headings left out": Fault(
        before_end("<h2>Two</h2><h4>Four</h4>"), checks.headings
    ),
}
FAULTS_IN_FILES = {
    "a link to nowhere": Fault(before_end('<a href="#nowhere">go</a>'), checks.links),
    "a link to a page that is gone": Fault(
        before_end('<a href="gone.html">go</a>'), checks.links
    ),
    "an id that is taken": Fault(
        before_end('<p id="twin"></p><p id="twin"></p>'), checks.ids
    ),
    "a picture from another host": Fault(
        FAULTS["a picture from another host"].plant, checks.loads
    ),
    "a picture without words": Fault(
        FAULTS["a picture without words"].plant, checks.pictures
    ),
    "a picture described by its file's name": Fault(
        before_end('<img alt="plot.png" src="../_static/favicon.svg">'), checks.pictures
    ),
}


def copy(site, folder, plant):
    """The site with one page changed; everything else is the site's own."""
    for path in site.iterdir():
        if path.name != PAGE.split("/")[0]:
            os.symlink(path, folder / path.name)
    own = folder / PAGE
    own.parent.mkdir()
    for path in (site / PAGE).parent.iterdir():
        if path.name != own.name:
            os.symlink(path, own.parent / path.name)
    text = (site / PAGE).read_text("utf8")
    planted = plant(text)
    own.write_text(planted, "utf8")
    return planted != text


def test_the_copy_passes(browser, site, tmp_path):
    copy(site, tmp_path, lambda text: text)
    with Visitor(browser, tmp_path) as visitor:
        visit = visitor.visit(PAGE)
    found = {check.__name__: check(visit) for check in checks.VISIT_CHECKS}
    found |= {check.__name__: check(tmp_path, PAGE) for check in checks.FILE_CHECKS}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(browser, site, tmp_path, name):
    fault = FAULTS[name]
    assert copy(site, tmp_path, fault.plant)
    if "heavy.js" in (tmp_path / PAGE).read_text("utf8"):
        (tmp_path / "_static").unlink()
        (tmp_path / "_static").mkdir()
        for path in (site / "_static").iterdir():
            os.symlink(path, tmp_path / "_static" / path.name)
        (tmp_path / "_static" / "heavy.js").write_text("// " + "x" * 120_000, "utf8")
    with Visitor(browser, tmp_path) as visitor:
        visit = visitor.visit(PAGE, axe=fault.axe)
    assert fault.check(visit)


@pytest.mark.parametrize("name", FAULTS_IN_FILES)
def test_a_fault_in_a_file_is_found(site, tmp_path, name):
    fault = FAULTS_IN_FILES[name]
    assert copy(site, tmp_path, fault.plant)
    assert fault.check(tmp_path, PAGE)
