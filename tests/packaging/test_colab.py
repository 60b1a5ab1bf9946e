"""The first cell of each notebook, in an environment like Colab's and in our own."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from environments import ROOT, Environment, clean_environment
from nbclient import NotebookClient

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIRST = ROOT / "notebooks" / "02_scaled_dot_product.ipynb"

PROBE = """
import importlib.metadata, json, pathlib, sys
import aiayn, torch
distribution = importlib.metadata.distribution("aiayn")
print(json.dumps({
    "python": sys.prefix,
    "aiayn": aiayn.__file__,
    "torch": torch.__file__,
    "origin": json.loads(distribution.read_text("direct_url.json")),
    "folder": str(pathlib.Path.cwd()),
}))
"""


def setup_cell(path: Path):
    """The first code cell, which has to stand right below the title."""
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert cells[1].cell_type == "code"
    return cells[1]


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run a notebook in the kernel of any environment, from a folder of its own."""

    def run(environment: Environment, notebook, **variables):
        spec = tmp_path / "jupyter" / "kernels" / "python3"
        spec.mkdir(parents=True, exist_ok=True)
        command = [str(environment.python), "-m", "ipykernel_launcher"]
        argv = [*command, "-f", "{connection_file}"]
        kernel = {"argv": argv, "display_name": "Python 3", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(kernel))
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
        folder = tmp_path / "elsewhere"
        folder.mkdir(exist_ok=True)
        client = NotebookClient(
            notebook, timeout=300, resources={"metadata": {"path": str(folder)}}
        )
        client.execute(env=clean_environment(**variables))
        return notebook

    return run


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of torch: nothing rewrote it."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for name in ("torch", "torch-*.dist-info")
        for root in folder.glob(name)
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_every_notebook_begins_with_the_same_cell():
    assert len(NOTEBOOKS) >= 8
    sources = {path.name: setup_cell(path).source for path in NOTEBOOKS}
    assert len(set(sources.values())) == 1, sorted(sources)
    for path in NOTEBOOKS:
        assert setup_cell(path).metadata.tags == ["remove-cell"]


def test_on_colab(with_torch, checkout, execute):
    """The very cell installs the package, non-editable, and leaves torch alone.

    Then the whole first chapter runs, in a folder that holds nothing of the checkout.
    """
    with_torch.install("numpy", "matplotlib", "ipykernel")
    site = with_torch.site_packages()
    before, files = with_torch.packages(), stamps(site)
    assert "aiayn" not in before
    assert len(files) > 1000

    notebook = nbformat.read(FIRST, as_version=4)
    assert notebook.cells[1].source == setup_cell(FIRST).source
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE))
    execute(with_torch, notebook, AIAYN_SOURCE=str(checkout), AIAYN_DEVICE="cpu")

    found = json.loads(notebook.cells[-1].outputs[0].text)
    assert Path(found["python"]).samefile(with_torch.folder)
    assert Path(found["aiayn"]).parent.parent.samefile(site)
    assert Path(found["torch"]).parent.parent.samefile(site)
    assert found["origin"]["url"].startswith("file:")
    assert not found["origin"]["dir_info"].get("editable", False)
    assert not Path(found["folder"]).is_relative_to(ROOT)

    after = with_torch.packages()
    assert {name: after[name] for name in before} == before
    added = {"aiayn", "jaxtyping", "safetensors", "wadler_lindig"}
    assert after.keys() - before.keys() <= added
    assert stamps(site) == files
    for cell in notebook.cells[2:]:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text


def test_at_home_the_cell_does_nothing(execute, tmp_path):
    """Where the package is installed, nothing is: a wrong address goes unnoticed."""
    notebook = nbformat.v4.new_notebook(cells=[setup_cell(FIRST)])
    home = Environment(Path(sys.prefix))
    before = home.packages()
    execute(home, notebook, AIAYN_SOURCE=str(tmp_path / "nowhere"))
    assert notebook.cells[0].outputs == []
    assert home.packages() == before


def test_a_wrong_address_is_noticed(with_torch, execute, tmp_path):
    """The control for the test above: where the package is missing, pip is asked."""
    with_torch.install("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[setup_cell(FIRST)])
    execute(with_torch, notebook, AIAYN_SOURCE=str(tmp_path / "nowhere"))
    said = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert "nowhere" in said
