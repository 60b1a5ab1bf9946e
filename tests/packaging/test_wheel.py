"""The wheel: what is in it, and what it does where only torch is installed."""

import email
import re
import tarfile
import zipfile

from environments import ROOT

import aiayn

PACKAGE = ROOT / "src" / "aiayn"


def package_files() -> set[str]:
    """Every file of the package as git sees it: modules, py.typed, data."""
    return {
        f"aiayn/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(distributions):
    names = set(zipfile.ZipFile(distributions["wheel"]).namelist())
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - info == package_files()
    assert "aiayn/py.typed" in names
    licences = {name.rpartition("/")[2] for name in info if "/licenses/" in name}
    assert licences == {"LICENSE", "LICENSE-text"}


def test_metadata(distributions):
    """annotated-transformer#124, #136: pins of versions that are gone; a range."""
    wheel = zipfile.ZipFile(distributions["wheel"])
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_string(wheel.read(name).decode())
    assert metadata["Name"] == "aiayn"
    assert metadata["Version"] == aiayn.__version__
    assert metadata["Requires-Python"] == ">=3.10"
    requirements = metadata.get_all("Requires-Dist")
    needed = {re.split(r"[<>=;\[ ]", r)[0] for r in requirements if "extra ==" not in r}
    assert needed == {"torch", "numpy", "jaxtyping", "safetensors"}
    assert "torch>=2.5" in requirements
    assert not any("+" in r or "@" in r for r in requirements)
    assert distributions["wheel"].name == f"aiayn-{aiayn.__version__}-py3-none-any.whl"


def test_the_source_archive_is_complete(distributions):
    """The wheel was built from it; it holds the notebooks and tests as well."""
    with tarfile.open(distributions["sdist"]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} <= inside
    notebooks = {f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(notebooks) >= 8
    assert notebooks <= inside
    assert "tests/conftest.py" in inside
    assert not any("site-packages" in name or ".venv" in name for name in inside)


def test_installed_where_only_torch_is(with_torch, distributions):
    """Everything imports, from site-packages, without a word or a trace."""
    before = with_torch.packages()
    assert "numpy" not in before
    with_torch.install(str(distributions["wheel"]))
    added = with_torch.packages().keys() - before.keys()
    assert {"aiayn", "jaxtyping", "numpy", "safetensors"} <= added
    assert added <= {"aiayn", "jaxtyping", "numpy", "safetensors", "wadler_lindig"}

    version = with_torch.run("-c", "import aiayn; print(aiayn.__version__)")
    assert version == f"{aiayn.__version__}\n"

    quiet = with_torch.run("-W", "error", "-c", IMPORT_EVERYTHING)
    assert quiet == ""
    printed = with_torch.run("-W", "error", "-c", USE_IT, AIAYN_DEVICE="cpu")
    assert printed == "torch.Size([2, 4, 11]) torch.Size([2, 3])\n"
    extra = with_torch.run("-c", FIGURES_WITHOUT_MATPLOTLIB)
    assert 'pip install "aiayn[figures]"' in extra

    # the command line, where none of the extra's packages is
    assert "train a model" in with_torch.run("-m", "aiayn", "--help")
    train = ("-m", "aiayn", "train", "copy", "--preset", "small", "--device", "cpu")
    run = (*train, "--output", "run", "--max-steps", "2", "--held-out", "20")
    said = with_torch.run(*run, "--no-progress", "--no-plot")
    assert "2 updates; " in said
    files = sorted(file.name for file in (with_torch.folder / "run").iterdir())
    expected = ["checkpoint.safetensors", "config.json", "metrics.jsonl", "result.json"]
    assert files == expected
    code = RUN_WITHOUT_EXTRA.format(arguments=[*train[2:], "--output", "other"])
    assert 'pip install "aiayn[train]"' in with_torch.run("-c", code)
    assert not (with_torch.folder / "other").exists()


IMPORT_EVERYTHING = """
import importlib, pathlib, pkgutil, random, sys, sysconfig
import torch

states = random.getstate(), torch.get_rng_state()
settings = lambda: (
    torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(),
    torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
    torch.get_float32_matmul_precision(), sys.getrecursionlimit(),
)
before = settings()

import aiayn

home = pathlib.Path(sysconfig.get_path("purelib"))
for info in pkgutil.walk_packages(aiayn.__path__, "aiayn."):
    module = importlib.import_module(info.name)
    assert pathlib.Path(module.__file__).is_relative_to(home), module.__file__
for name in aiayn.__all__:
    getattr(aiayn, name)
assert pathlib.Path(aiayn.__file__).is_relative_to(home), aiayn.__file__
assert (pathlib.Path(aiayn.__file__).parent / "py.typed").exists()

assert random.getstate() == states[0]
assert torch.equal(torch.get_rng_state(), states[1])
assert settings() == before
for module in ("matplotlib", "IPython", "pandas", "datasets", "accelerate", "tqdm"):
    assert module not in sys.modules, module
"""

USE_IT = """
import torch
from aiayn import Transformer, TransformerConfig, greedy_decode

torch.manual_seed(0)
model = Transformer(TransformerConfig.toy(11))
source = torch.tensor([[3, 4, 2], [5, 2, 0]])
written = greedy_decode(model.eval(), source, max_len=3)
print(model(source, torch.tensor([[1, 3, 4, 5], [1, 6, 7, 0]])).shape, written.shape)
"""

FIGURES_WITHOUT_MATPLOTLIB = """
from aiayn.book import style
try:
    style.use()
except ImportError as error:
    print(error)
"""

RUN_WITHOUT_EXTRA = """
from aiayn.__main__ import main
try:
    main({arguments})
except SystemExit as stop:
    assert stop.code == 2
"""
