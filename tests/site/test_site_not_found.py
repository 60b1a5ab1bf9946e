"""The page for an address that leads nowhere, on a host like GitHub Pages."""

import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
import yaml
from documents import read


@pytest.fixture(scope="module")
def base(root):
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    return urlsplit(config["html"]["baseurl"]).path


@pytest.fixture(scope="module")
def host(site, base):
    """Serves the book below its base, and 404.html for what is not there."""

    class Pages(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            inside = path.startswith(base)
            return super().translate_path(
                path.removeprefix(base[:-1]) if inside else "/-"
            )

        def send_error(self, code, *rest, **named):
            body = (site / "404.html").read_bytes()
            self.send_response(code)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    def handler(*arguments):
        return Pages(*arguments, directory=str(site))

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def lost(browser, host, base):
    """Open an address that leads nowhere; gives the tab."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.bad, page.errors = [], []

    def note(response):
        wrong = response.status >= 400 or not response.url.startswith(host + base)
        if wrong and response.request.resource_type != "document":
            page.bad.append((response.status, response.url))

    page.on("response", note)
    page.on("pageerror", lambda error: page.errors.append(str(error)))

    def visit(address):
        assert page.goto(host + base + address, wait_until="load").status == 404
        return page

    yield visit
    context.close()
    assert page.bad == []
    assert page.errors == []


@pytest.mark.parametrize("address", ["a", "a/b/c", "notebooks/x.html", "a/b/c/"])
def test_it_looks_like_the_book_at_any_depth(lost, address):
    page = lost(address)
    assert page.locator("article h1").inner_text() == "This page is not here"
    family = page.locator("article").evaluate("e => getComputedStyle(e).fontFamily")
    assert "Source Serif 4" in family
    assert page.evaluate("document.fonts.check('16px \"Source Serif 4\"')")


def test_its_links_lead_to_pages_from_any_depth(lost, host, base, site):
    page = lost("a/b/c.html")
    links = page.locator("a[href]").evaluate_all("all => all.map(a => a.href)")
    own = [urlsplit(link) for link in links if link.startswith(host)]
    assert len(own) > 30
    for link in own:
        if link.fragment:  # on the page itself, the skip link among them
            assert link.path == f"{base}a/b/c.html"
            continue
        assert link.path.startswith(base)
        assert (site / (link.path.removeprefix(base) or "index.html")).is_file(), link


def test_it_lists_the_whole_book(site, root):
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    wanted = [f"{c['file']}.html" for part in toc["parts"] for c in part["chapters"]]
    text = (site / "404.html").read_text("utf8").split('class="whole-book"')[1]
    assert [name for name in wanted if f'<a href="{name}">' not in text] == []


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("notebooks/02_attention.html", "notebooks/02_scaled_dot_product.html"),
        ("chapters/7.html", "notebooks/07_decoding.html"),
        ("kv-cache", "notebooks/09_kv_cache.html"),
        ("notebooks/flash_attention.ipynb", "notebooks/11_flash.html"),
        ("de/glossar", "book/glossary.html"),
        ("book/paper.htm", "book/paper.html"),
        ("xyzzy/plugh", None),
        ("index.php", None),
    ],
)
def test_it_guesses_the_page_that_was_meant(lost, host, base, address, meant):
    likely = lost(address).locator("#likely")
    if meant is None:
        assert likely.is_hidden()
        return
    assert likely.is_visible()
    assert likely.locator("a").evaluate("a => a.href") == host + base + meant


def test_its_search_finds_what_the_address_names(lost, host, base):
    page = lost("old/wavelength.html")
    assert page.get_by_label("Search the book").input_value() == "wavelength"
    page.get_by_role("button", name="Search", exact=True).last.click()
    page.wait_for_url(f"{host}{base}search.html?q=wavelength")
    page.wait_for_selector("#search-results ul.search li a")


def test_it_is_listed_nowhere(site):
    assert read(site / "404.html").metas["robots"] == ["noindex"]
    assert "404" not in (site / "sitemap.xml").read_text("utf8")
    names = (site / "searchindex.js").read_text("utf8").split('"docnames":')[1]
    assert '"404"' not in names.split("]")[0]
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            addresses = [link.get("href") or "" for link in read(page).links]
            assert not any("404.html" in address for address in addresses), page
            assert "robots" not in read(page).metas, page
