"""The built pages as files: heads, links, addresses, pictures, weight."""

import re
import subprocess
from urllib.parse import urlsplit

import checks
import nbformat
import pytest
import tomllib
import yaml
from documents import read


def repository(root):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf8"))
    return project["project"]["urls"]["Repository"].removeprefix("https://github.com/")


def contents(root):
    """The landing page, and the other pages in order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    return toc["root"], [c["file"] for part in toc["parts"] for c in part["chapters"]]


@pytest.fixture
def document(page, site):
    return read(site / page)


def test_head_names_and_describes_the_page(document, page, root):
    assert document.language == "en"
    assert document.headings.count(1) == 1
    assert len(document.title.strip()) > 10
    assert "Attention, Line by Line" in document.title
    [description] = document.metas["description"]
    shortest = 20 if page.startswith("_modules/") or page == "search.html" else 60
    assert shortest <= len(description) <= 170
    assert not re.search(r"[\\$]", description)
    [viewport] = document.metas["viewport"]
    assert "width=device-width" in viewport


def test_canonical_address(document, page, root):
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    base = config["html"]["baseurl"]
    assert document.canonical == [base if page == "index.html" else base + page]


def test_titles_and_descriptions_are_each_page_s_own(site, pages):
    for value in (
        lambda page: page.title,
        lambda page: page.metas["description"][0],
    ):
        seen = {}
        for page in pages:
            seen.setdefault(value(read(site / page)), []).append(page)
        assert [names for names in seen.values() if len(names) > 1] == []


def test_every_page_of_the_contents_is_described(root):
    home, files = contents(root)
    described = yaml.safe_load((root / "book/descriptions.yml").read_text("utf8"))
    assert {home, *files} == described.keys() - {"search", "404"}


def test_the_contents_hold_every_notebook_in_order(root):
    listed = [name for name in contents(root)[1] if name.startswith("notebooks/")]
    notebooks = sorted(root.glob("notebooks/*.ipynb"))
    assert listed == [f"notebooks/{path.stem}" for path in notebooks]


def test_the_landing_page_is_a_page(site):
    text = (site / "index.html").read_text("utf8")
    assert "http-equiv" not in text.lower()
    assert not (site / "book/intro.html").exists()


@pytest.mark.parametrize("check", checks.FILE_CHECKS, ids=lambda check: check.__name__)
def test_page(site, page, check):
    assert check(site, page) == []


def test_nothing_lies_in_the_site_that_nothing_loads(site):
    text = "".join(
        path.read_text("utf8")
        for path in site.rglob("*")
        if path.suffix in (".html", ".css", ".js")
    )
    files = [path for path in site.glob("_static/**/*.*") if path.is_file()]
    # a script puts the name of a preview together, from an anchor
    named = lambda path: path.stem if path.parent.name == "previews" else path.name
    assert [path for path in files if named(path) not in text] == []


def test_no_script_is_big(site):
    """Those that come later, on demand, too; weights of a model are no script."""
    for path in site.rglob("*.js"):
        if path.name != "searchindex.js" and not path.name.startswith("copy_model."):
            assert path.stat().st_size <= checks.BIGGEST_SCRIPT, path


def test_style_sheets_load_only_files_of_the_site(site):
    for sheet in site.rglob("*.css"):
        text = sheet.read_text("utf8")
        for address in re.findall(r"url\(\s*['\"]?([^'\")]+)", text):
            if not address.startswith(("data:", "#")):
                assert not urlsplit(address).netloc, (sheet.name, address)
                assert (sheet.parent / address).is_file(), (sheet.name, address)
        assert not re.search(r"@import[^;]*https?:", text), sheet.name


def in_git(root, path):
    command = ["git", "ls-files", "--error-unmatch", path]
    return subprocess.run(command, cwd=root, capture_output=True).returncode == 0


def branch(root):
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    settings = config["sphinx"]["config"]["html_theme_options"]
    assert settings["repository_branch"] == config["repository"]["branch"]
    return settings["repository_branch"]


def test_buttons_open_the_committed_notebook(document, page, root, site):
    actions = [a for a in document.links if "page-action" in a.get("class", "")]
    if not page.startswith("notebooks/"):
        assert actions == []
        return
    notebook, name = page.replace(".html", ".ipynb"), repository(root)
    assert (root / notebook).is_file()
    assert in_git(root, notebook)
    colab, lab, download = [a["href"] for a in actions]
    at = f"{name}/blob/{branch(root)}/{notebook}"
    assert colab == f"https://colab.research.google.com/github/{at}"
    at = f"{name}/{branch(root)}?urlpath=lab/tree/{notebook}"
    assert lab == f"https://mybinder.org/v2/gh/{at}"
    copy = (site / page).parent / download
    same = nbformat.read(copy, 4).cells == nbformat.read(root / notebook, 4).cells
    assert same, "the page offers another notebook than the repository's"


def test_equations_have_their_label_as_anchor(root, site):
    label = re.compile(r"^\$\$\s*\(([a-z][a-z0-9-]*)\)\s*$", re.M)
    for path in sorted(root.glob("notebooks/*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(c.source for c in cells if c.cell_type == "markdown")
        ids = read(site / "notebooks" / f"{path.stem}.html").ids
        for name in label.findall(text):
            assert name in ids, f"{path.name}: {name}"


def test_chapters_carry_the_number_of_their_file(site, pages):
    for page in pages:
        if match := re.match(r"notebooks/(\d\d)_", page):
            text = (site / page).read_text("utf8")
            number = int(match[1])
            assert f'<h1><span class="section-number">{number}. </span>' in text
            for equation in re.findall(r'class="eqno"><a [^>]*>\((\d+)\.\d+\)', text):
                assert int(equation) == number, page


def test_the_api_page_holds_every_public_name(site):
    import aiayn

    public = {
        f"aiayn.{module}.{name}"
        for name, module in aiayn._MODULE_OF.items()
        if not name.isupper()  # the special tokens stand in the conventions
    }
    assert public - set(read(site / "book/api.html").ids) == set()


def test_search_and_site_map_know_the_landing_page(site):
    index = (site / "searchindex.js").read_text("utf8")
    assert '"index"' in index
    assert "book/intro" not in index.split('"docnames":')[1].split("]")[0]
    assert "book/intro" not in (site / "sitemap.xml").read_text("utf8")


def test_the_configured_repository_and_branch_make_the_addresses(monkeypatch, root):
    monkeypatch.syspath_prepend(str(root / "book" / "_ext"))
    from page_heads import launchers

    options = {
        "repository_url": "https://github.com/someone/somebook",
        "repository_branch": "next",
        "launch_buttons": {"colab_url": "https://colab.example"},
    }
    assert launchers(options, "notebooks/03_x.ipynb") == {
        "colab_url": "https://colab.example/github/someone/somebook/blob/next/"
        "notebooks/03_x.ipynb",
        "lab_url": "https://mybinder.org/v2/gh/someone/somebook/next"
        "?urlpath=lab/tree/notebooks/03_x.ipynb",
        "download_name": "notebooks/03_x.ipynb",
    }
