"""Figures in JupyterLab itself: run by a kernel, walked by keyboard, light and dark.

Starts a server of its own, which takes a minute; so it runs with the slow tests.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import figure_walk
import nbformat
import pytest

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab with one notebook, the examples of figures."""
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    notebook.cells = [
        nbformat.v4.new_code_cell(source)
        for source in (
            f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
            "from figure_examples import EXAMPLES",
            "EXAMPLES['tiles']()",
            "EXAMPLES['masks']()",
            "EXAMPLES['memory']()",
        )
    ]
    nbformat.write(notebook, tmp_path / "figures.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "HOME")
    env = {**os.environ, **{name: str(tmp_path / "home") for name in folders}}
    env.pop("AIAYN_FIGURES", None)  # as in a reader's own notebook
    env["PYTHONPATH"] = str(TESTS.parent / "src")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", f"--notebook-dir={tmp_path}"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=None"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"{address}/api").close()
                    break
                except OSError:
                    assert server.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(1)
            yield address
        finally:
            server.terminate()
            server.wait(timeout=30)


def test_figures_live_in_jupyterlab(lab, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(f"{lab}/lab/tree/figures.ipynb")
    page.locator(".jp-Notebook .cm-content").first.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    figures = page.locator("aiayn-figure[data-ready]")
    figures.nth(2).wait_for(state="attached")

    tiles, masks, memory = figures.all()
    for figure in (tiles, masks):
        figure.scroll_into_view_if_needed()
        data, states = figure_walk.stored(figure), 0
        for state, shown in figure_walk.walk(figure, data, most=12, few=12):
            figure_walk.check(data, state, shown)
            states += 1
        assert states >= 8
    # keys of a figure are its own: no cell was moved to, cut or put into edit mode
    assert page.locator(".jp-CodeCell").count() >= 4

    tiles.scroll_into_view_if_needed()
    before = tiles.locator("output").text_content()
    tiles.get_by_role("button", name="Back").click()
    assert tiles.locator("output").text_content() != before
    masks.locator("td[tabindex='0']").first.focus()
    page.keyboard.press("End")
    assert masks.locator(".cell").first.text_content()

    memory.scroll_into_view_if_needed()
    memory.locator("[data-field=layers]").fill("12")
    assert "201 MB" in memory.locator("output").text_content()

    look = "e => getComputedStyle(e.querySelector('.label')).color"
    scheme = "e => getComputedStyle(e).colorScheme"
    light = tiles.evaluate(scheme), tiles.evaluate(look)
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert (light[0], tiles.evaluate(scheme)) == ("light", "dark")
    context.close()
