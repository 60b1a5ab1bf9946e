"""What a page shows elsewhere: the card of a shared link, icons, data for machines."""

import json
import re
import struct

import pytest
import yaml
from documents import read


@pytest.fixture
def document(page, site):
    return read(site / page)


@pytest.fixture(scope="session")
def base(root):
    return yaml.safe_load((root / "_config.yml").read_text("utf8"))["html"]["baseurl"]


def size(picture):
    """Width and height of a PNG."""
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_a_shared_link_has_a_card(document, site, base):
    [address] = document.metas["og:image"]
    assert address.startswith(base)  # others read it, so it is absolute
    card = site / address.removeprefix(base)
    width, height = size(card)
    assert (width, height) == (1200, 630)
    assert document.metas["og:image:width"] == [str(width)]
    assert document.metas["og:image:height"] == [str(height)]
    assert card.stat().st_size < 100_000
    assert len(document.metas["og:image:alt"][0]) > 60
    assert document.metas["twitter:card"] == ["summary_large_image"]


def test_a_phone_s_home_screen_has_an_icon(page, site):
    text = (site / page).read_text("utf8")
    [address] = re.findall(r'<link rel="apple-touch-icon" href="([^"]+)">', text)
    icon = (site / page).parent / address
    assert size(icon) == (180, 180)


def test_the_browser_s_frame_has_the_colour_of_the_page(document, root):
    sheet = (root / "book/_theme/book.css").read_text("utf8")
    colours = re.findall(r"--pst-color-background: (#\w+)", sheet)
    assert document.metas["theme-color"] == colours  # light, dark


def test_machines_can_read_what_a_page_is(page, site, base):
    document = read(site / page)
    text = (site / page).read_text("utf8")
    found = re.findall(
        r'<script type="application/ld\+json">(.*?)</script>', text, re.S
    )
    if page in ("search.html", "404.html") or page.startswith("_modules/"):
        assert found == []
        return
    [data] = map(json.loads, found)
    assert data["@context"] == "https://schema.org"
    assert data["@type"] == ("Book" if page == "index.html" else "Chapter")
    assert [data["url"]] == document.canonical
    assert [data["description"]] == document.metas["description"]
    if page != "index.html":
        assert data["isPartOf"]["url"] == base
