"""The built site, and one browser in which every page is looked at once.

The site is `_build/html`, or the folder that `AIAYN_SITE` names. Without a site or
without Chromium these tests are skipped, except under `CI=true`, where they must run.
"""

import os
import shutil
from pathlib import Path

import pytest
from visits import Visitor

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("AIAYN_SITE", ROOT / "_build" / "html")).resolve()
PAGES = sorted(p.relative_to(SITE).as_posix() for p in SITE.rglob("*.html"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def missing(reason):
    """Skip for this reason; in continuous integration fail instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES or [None], ids=PAGES or ["no site"])


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def site():
    if not (SITE / "index.html").exists():
        missing(f"no built site at {SITE}: run `make site`")
    return SITE


@pytest.fixture(scope="session")
def pages(site):
    """Every built page, by its address within the site."""
    return PAGES


@pytest.fixture(scope="session")
def chapters(pages):
    """The pages that were notebooks."""
    found = [page for page in pages if page.startswith("notebooks/")]
    assert found
    return found


@pytest.fixture(scope="session")
def browser(site):
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        missing("no Chromium found: install Debian's `chromium`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            args=[
                "--no-sandbox",  # Chromium refuses to run as root otherwise
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def visitor(browser, site):
    with Visitor(browser, site) as visitor:
        yield visitor


@pytest.fixture
def visit(page, visitor):
    """What a visit to this page found; each page is visited once a session."""
    return visitor.visit(page)


@pytest.fixture
def tab(browser):
    """A fresh tab that can reach files only and must stay silent."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.route(
        "**/*",
        lambda route: (
            route.continue_()
            if route.request.url.startswith(("file:", "data:"))
            else route.abort()
        ),
    )
    page, messages = context.new_page(), []
    page.on(
        "console",
        lambda m: m.type in ("error", "warning") and messages.append(m.text),
    )
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert messages == []
