"""Notebooks hold plain Markdown where the book's pages need MyST.

JupyterLab and Colab show MyST's roles, directives and labels as they are typed. So a
notebook holds for each of them a form that reads well there too:

    {cite:p}`dao2022`             [[Dao et al., 2022](https://arxiv.org/abs/…)]
    {cite:t}`dao2022`             Dao et al. [[2022](https://arxiv.org/abs/…)]
    {chapter}`8`                  [8 What attention costs](08_cost.ipynb)
    $$ … $$ (eq-softmax)          a number in it, \\tag{2.1}, and an anchor above it
    [the softmax](#eq-softmax)    [the softmax (2.1)](#eq-softmax); of another chapter
                                  [… (2.1)](02_scaled_dot_product.ipynb#eq-softmax)
    [softmax](#term-softmax)      the same at the address of the published page
    (sec-02-name)=                <a id="sec-02-name"></a>
    exercises, solutions          headings with the exercise's number
    :::{admonition} Title         a quotation that begins with its title
    the caption of a figure       **Figure 2.1.** … where the next text begins

``Forms`` translates both ways. The pages are built from MyST (plain_notebooks.py);
authors write MyST in the text form (tools/text.py) or in the notebook, and
tools/forms.py writes the plain forms. Names, years, titles and numbers are made anew
each time, so none goes stale.
"""

import json
import re
from collections import Counter
from functools import cached_property
from pathlib import Path

import yaml
from pybtex.database import parse_file
from pybtex.richtext import Text

ANCHOR = '<a id="{}"></a>'
START = ":::{{solution-start}} {}\n:class: dropdown\n:::"
END = ":::{solution-end}\n:::"
UNWRITTEN = "not written yet"

# ---- MyST --------------------------------------------------------------------------
LINES = r"((?:(?!\$\$).)*?)"  # of one formula
EQUATION = re.compile(rf"^\$\$\n{LINES}\n\$\$ \(((?:eq|res)-[\w-]+)\)$", re.M | re.S)
TARGET = re.compile(r"^\(([\w-]+)\)=\n", re.M)
EXERCISE = re.compile(
    r"^:::\{exercise\} ([^\n]+)\n:label: (ex-[\w-]+)\n(.*?)\n:::$", re.M | re.S
)
SOLUTION = re.compile(r"^:::\{solution-start\} (\S+)\n:class: dropdown\n:::$", re.M)
SOLUTION_END = re.compile(r"(?:\n\n|\A):::\{solution-end\}\n:::(?:\n\n|\Z)")
ADMONITION = re.compile(r"^:::\{admonition\} ([^\n]+)\n(.*?)\n:::$", re.M | re.S)
CITATION = re.compile(r"\{cite:([pt])\}`([\w,-]+)`")
CHAPTER = re.compile(r"\{chapter\}`(\d+)`")
LINK = re.compile(r"(\[?)\]\(#([\w-]+)\)")
PAGE_LINK = re.compile(r"\]\(\.\./(book/\w+)\.md\)")
MARK = re.compile(  # what begins or ends a solution
    r"^:::\{solution-end\}"
    r"|^:::\{solution-start\} (?P<solved>.*)\n:class: dropdown\n:::$"
    r"|^(?:\([\w-]+\)=\n)*"
    r"(?::::\{exercise\} .*\n:label: (?P<exercise>.+)|#{1,2} .*)",
    re.M,
)
RAW = re.compile(  # JupyterLab and Colab show these as they are typed
    r"\{[a-z:]+\}`|^\s*:::|^\s*```\{|^\s*\([\w-]+\)=\s*$|\$\$ *\([\w-]+\)|\[\]\(|"
    r"\]\(\.\./|\]\(\w+\.md",
    re.M,
)

# ---- plain Markdown ----------------------------------------------------------------
PLAIN_EQUATION = re.compile(
    rf'^<a id="((?:eq|res)-[\w-]+)"></a>\n\n\$\$\n{LINES}\n\\tag\{{[\d.]+\}}\n\$\$$',
    re.M | re.S,
)
PLAIN_TARGET = re.compile(r'^<a id="([\w-]+)"></a>\n\n', re.M)
PLAIN_EXERCISE = re.compile(
    r'^<a id="(ex-[\w-]+)"></a>\n\n### Exercise [\d.]+ · ([^\n]+)\n\n'
    r"(.*?)(?=\n\n(?:<a id=\"ex-|#{2,4} )|\Z)",
    re.M | re.S,
)
PLAIN_SOLUTION = re.compile(r"^#### Solution to Exercise [\d.]+$", re.M)
PLAIN_ADMONITION = re.compile(r"^> \*\*(.+)\*\*\n>\n(>.*(?:\n>.*)*)", re.M)
PLAIN_CITATION = re.compile(r"\[([^\[\]]+)\]\((https?:[^()\s]+)\)")
PLAIN_CITATIONS = re.compile(r"\[((?:(?:, )?\[[^\[\]]+\]\(https?:[^()\s]+\))+)\]")
PLAIN_CHAPTER = re.compile(r"\[(\d+) [^\[\]]+\]\((\d\d)_\w+\.ipynb\)")
PLAIN_NUMBER = re.compile(
    r"(?:(?<=\[)| )\([\d.]+\)(\]\((?:\w+\.ipynb)?#(?:eq|res)-[\w-]+\))"
)
PLAIN_NAME = re.compile(
    r"\[(?:Exercise|Figure) [\d.]+(\]\((?:\w+\.ipynb)?#(?:ex|fig)-[\w-]+\))"
)
PLAIN_CAPTION = re.compile(r'<a id="fig-[\w-]+"></a>\*\*Figure [\d.]+\.\*\* .*\n*')


class Forms:
    """The forms of the book below ``root``."""

    def __init__(self, root):
        self.root = Path(root)
        self.problems = []  # what a form says against the bibliography

    # ---- what the forms are made from --------------------------------------------
    @cached_property
    def site(self):
        """The address of the published pages."""
        settings = yaml.safe_load((self.root / "_config.yml").read_text("utf8"))
        return settings["html"]["baseurl"]

    @cached_property
    def works(self):
        """Key of a work -> (authors, year, address)."""
        path = self.root / "book" / "references.bib"
        return {
            key: (authors(entry), entry.fields["year"], address(entry, self.site))
            for key, entry in (
                parse_file(str(path)).entries if path.exists() else {}
            ).items()
        }

    @cached_property
    def plan(self):
        """Number of a chapter -> (its file's name, title)."""
        path = self.root / "book" / "chapters.yml"
        parts = yaml.safe_load(path.read_text("utf8")) if path.exists() else []
        chapters = [chapter for part in parts for chapter in part["chapters"]]
        names = [(Path(c["file"]).name, c["title"]) for c in chapters]
        return {int(name[:2]): (name, title) for name, title in names}

    @cached_property
    def places(self):
        """Anchor -> (its page, as a notebook links it; its number or None)."""
        found = {}
        for path in sorted((self.root / "book").glob("*.md")):
            page = f"{self.site}book/{path.stem}.html"
            for anchor in TARGET.findall(path.read_text("utf8")):
                found[anchor] = page, None
        for path in sorted((self.root / "notebooks").glob("*.ipynb")):
            cells = json.loads(path.read_text("utf8"))["cells"]
            for cell in cells:
                cell["source"] = "".join(cell["source"])
            found |= self.anchors(cells, path.stem)
        return found

    def anchors(self, cells, name):
        """The anchors of one notebook, with the numbers that its page gives them."""
        found, counts = {}, Counter()

        def number(kind, anchor):
            counts[kind] += 1
            found[anchor] = f"{name}.ipynb", f"{int(name[:2])}.{counts[kind]}"

        for text, cell in zip(self.to_myst(cells), cells, strict=True):
            if cell["cell_type"] != "markdown":
                figure = cell["metadata"].get("mystnb", {}).get("figure")
                if figure:
                    number("figure", figure["name"])
                continue
            for match in EQUATION.finditer(text):
                number("equation", match[2])
            for match in EXERCISE.finditer(text):
                number("exercise", match[2])
            for anchor in TARGET.findall(text):
                found[anchor] = f"{name}.ipynb", None
        return found

    # ---- to MyST -----------------------------------------------------------------
    def to_myst(self, cells):
        """The text of each cell, where it is markdown in MyST."""
        texts, exercise, solving, last = [], None, False, None
        for cell in cells:
            text = cell["source"]
            if cell["cell_type"] == "markdown":
                while match := PLAIN_CAPTION.match(text):
                    text = text[match.end() :]
                text = self.blocks_to_myst(text)
                text, exercise, solving = mark_solutions(text, exercise, solving)
                text = self.inline_to_myst(text)
                last = len(texts)
            texts.append(text)
        if solving:  # the last solution ends with the notebook
            texts[last] += f"\n\n{END}"
            if last != len(texts) - 1:
                self.problems.append("the last solution ends with code: add a sentence")
        return texts

    def blocks_to_myst(self, text):
        text = PLAIN_EXERCISE.sub(r":::{exercise} \2\n:label: \1\n\3\n:::", text)
        text = PLAIN_SOLUTION.sub(START.format(""), text)
        text = PLAIN_EQUATION.sub(r"$$\n\2\n$$ (\1)", text)
        text = PLAIN_ADMONITION.sub(admonition, text)
        return PLAIN_TARGET.sub(r"(\1)=\n", text)

    def inline_to_myst(self, text):
        for key, (names, year, url) in self.works.items():
            text = text.replace(f"{names} [[{year}]({url})]", f"{{cite:t}}`{key}`")
        text = PLAIN_CITATIONS.sub(self.citations, text)
        text = PLAIN_CHAPTER.sub(
            lambda m: f"{{chapter}}`{m[1]}`" if int(m[1]) == int(m[2]) else m[0], text
        )
        for number, (_, title) in self.plan.items():
            unwritten = f"{number} {title} ({UNWRITTEN})"
            text = text.replace(unwritten, f"{{chapter}}`{number}`")
        text = PLAIN_NAME.sub(r"[\1", PLAIN_NUMBER.sub(r"\1", text))
        site = re.escape(self.site)
        text = re.sub(rf"\]\((?:\d\d_\w+\.ipynb|{site}book/\w+\.html)#", "](#", text)
        return re.sub(rf"\]\({site}(book/\w+)\.html\)", r"](../\1.md)", text)

    def citations(self, match):
        """``[[Dao et al., 2022](…), …]`` as a role, if the bibliography has each."""
        keys = {(f"{n}, {y}", url): key for key, (n, y, url) in self.works.items()}
        urls = {url: f"[{n}, {y}]({url})" for n, y, url in self.works.values()}
        cited = PLAIN_CITATION.findall(match[1])
        for words, url in cited:
            if (words, url) not in keys:
                wanted = urls.get(url, "no work of this address")
                self.problems.append(
                    f"the citation [{words}]({url}): book/references.bib has {wanted}"
                )
                return match[0]
        return f"{{cite:p}}`{','.join(keys[entry] for entry in cited)}`"

    # ---- to plain Markdown -------------------------------------------------------
    def to_plain(self, cells, name):
        """The text of each cell of notebook ``name``, markdown in the plain forms."""
        here = self.anchors(cells, name)
        places, captions, texts = self.places | here, [], []

        def number(anchor):
            return here[anchor][1]

        for text, cell in zip(self.to_myst(cells), cells, strict=True):
            if cell["cell_type"] == "markdown":
                text = self.blocks_to_plain(text, number)
                text = "\n\n".join([*captions, text])
                text = self.inline_to_plain(text, places, f"{name}.ipynb")
                captions = []
            elif figure := cell["metadata"].get("mystnb", {}).get("figure"):
                caption = " ".join(figure["caption"].split())
                title = f"**Figure {number(figure['name'])}.**"
                captions.append(f"{ANCHOR.format(figure['name'])}{title} {caption}")
            texts.append(text)
        return texts

    def blocks_to_plain(self, text, number):
        def exercise(match):
            title, anchor, body = match.groups()
            title = f"### Exercise {number(anchor)} · {title}"
            return f"{ANCHOR.format(anchor)}\n\n{title}\n\n{body}"

        def solution(match):
            return f"#### Solution to Exercise {number(match[1])}"

        def equation(match):
            body, anchor = match.groups()
            tag = rf"\tag{{{number(anchor)}}}"
            return f"{ANCHOR.format(anchor)}\n\n$$\n{body}\n{tag}\n$$"

        def quotation(match):
            lines = [f"> {line}".rstrip() for line in match[2].split("\n")]
            return "\n".join([f"> **{match[1]}**", ">", *lines])

        text = TARGET.sub(ANCHOR.format(r"\1") + "\n\n", text)
        text = EXERCISE.sub(exercise, text)
        text = SOLUTION.sub(solution, text)
        text = SOLUTION_END.sub("\n\n", text).strip("\n")
        return ADMONITION.sub(quotation, EQUATION.sub(equation, text))

    def inline_to_plain(self, text, places, here):
        def cite(match):
            works = [self.works[key] for key in match[2].split(",")]
            if match[1] == "t":
                return ", ".join(f"{n} [[{y}]({url})]" for n, y, url in works)
            return "[" + ", ".join(f"[{n}, {y}]({url})" for n, y, url in works) + "]"

        def chapter(match):
            name, title = self.plan[int(match[1])]
            words, file = f"{match[1]} {title}", f"{name}.ipynb"
            if (self.root / "notebooks" / file).exists():
                return f"[{words}]({file})"
            return f"{words} ({UNWRITTEN})"

        def link(match):
            wordless, anchor = match.groups()
            page, number = places.get(anchor, (here, None))
            words = ""
            if number and anchor.startswith(("eq-", "res-")):
                words = f"({number})" if wordless else f" ({number})"
            elif number and wordless:
                kind = "Exercise" if anchor.startswith("ex-") else "Figure"
                words = f"{kind} {number}"
            address = "" if page == here else page
            return f"{wordless}{words}]({address}#{anchor})"

        text = CHAPTER.sub(chapter, CITATION.sub(cite, text))
        text = PAGE_LINK.sub(rf"]({self.site}\1.html)", text)
        return LINK.sub(link, text)


def authors(entry):
    """As the bibliography's labels name them."""
    names = [
        str(Text.from_latex(" ".join(person.prelast_names + person.last_names)))
        for person in entry.persons["author"]
    ]
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


def address(entry, site):
    """Where a work can be read; else its place among the references."""
    if "url" in entry.fields:
        return entry.fields["url"]
    if "doi" in entry.fields:
        return f"https://doi.org/{entry.fields['doi']}"
    if preprint := re.search(r"arXiv:(\d+\.\d+)", entry.fields.get("note", "")):
        return f"https://arxiv.org/abs/{preprint[1]}"
    return f"{site}book/references.html"


def admonition(match):
    lines = [line.removeprefix(">").removeprefix(" ") for line in match[2].split("\n")]
    return "\n".join([f":::{{admonition}} {match[1]}", *lines, ":::"])


def mark_solutions(text, exercise, solving):
    """Name the exercise of each solution and end it before what follows it."""
    parts, at = [], 0
    for match in MARK.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        mark = match[0]
        if "solution-end" in mark:
            solving = False
        elif "solution-start" in mark:
            mark, solving = START.format(match["solved"] or exercise), True
        else:  # an exercise or a heading
            exercise = match["exercise"] or exercise
            mark, solving = f"{END}\n\n{mark}" if solving else mark, False
        parts.append(mark)
    return "".join([*parts, text[at:]]), exercise, solving


def without_code(text):
    """A text without the code in it, which shows no forms; directives stay."""
    fence, span = r"^(```(?!\{)|~~~).*?^\1", r"(?<![}`])(``?)(?!`).+?(?<!`)\2(?!`)"
    return re.sub(rf"(?ms){fence}|{span}", "", text)


def raw_forms(text):
    """What JupyterLab and Colab would show as it is typed."""
    return [match[0].strip() for match in RAW.finditer(without_code(text))]
