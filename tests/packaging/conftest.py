"""Environments outside the checkout, made once for all tests of the package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import (
    LEFT_OUT,
    ROOT,
    Environment,
    clean_environment,
    link,
    new_environment,
)


@pytest.fixture(scope="session")
def torch_environment(tmp_path_factory) -> Environment:
    """Nothing but torch. Copied from, never installed into."""
    environment = new_environment(tmp_path_factory.mktemp("torch") / "venv")
    environment.install("torch")
    return environment


@pytest.fixture
def with_torch(torch_environment, tmp_path) -> Environment:
    """A fresh environment that holds only torch."""
    environment = new_environment(tmp_path / "venv")
    ours, theirs = environment.site_packages(), torch_environment.site_packages()
    shutil.copytree(
        theirs,
        ours,
        dirs_exist_ok=True,
        copy_function=link,
        ignore=lambda folder, names: (
            {n for n in names if n.startswith("pip")}
            if Path(folder) == theirs
            else set()
        ),
    )
    assert environment.packages() == torch_environment.packages()
    return environment


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """A copy of the source tree, without what git ignores."""
    copy = tmp_path_factory.mktemp("checkout") / "aiayn-book"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    return copy


@pytest.fixture(scope="session")
def distributions(checkout, tmp_path_factory) -> dict[str, Path]:
    """The source archive, and the wheel that is built from it and nothing else."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout],
        check=True,
        env=clean_environment(),
        capture_output=True,
    )
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}
