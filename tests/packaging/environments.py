"""Virtual environments outside the checkout, and how things run in them."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements.txt"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "_build", "dist", "text", "__pycache__", ".*_cache"
)


def clean_environment(**changes: str) -> dict[str, str]:
    """Without what would lead Python or pip back to the checkout."""
    own = ("PYTHONPATH", "VIRTUAL_ENV", "AIAYN_SOURCE")
    kept = {k: v for k, v in os.environ.items() if k not in own}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"} | changes


@dataclass(frozen=True)
class Environment:
    """A virtual environment and a folder to run things in."""

    folder: Path

    @property
    def python(self) -> Path:
        windows = self.folder / "Scripts" / "python.exe"
        return windows if windows.exists() else self.folder / "bin" / "python"

    def run(self, *arguments: str, **changes: str) -> str:
        """Run its Python outside the checkout; what it prints, errors included."""
        result = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env=clean_environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    def install(self, *requirements: str) -> None:
        self.run("-m", "pip", "install", "-q", "-c", str(PINS), *requirements)

    def packages(self) -> dict[str, str]:
        """Name -> version of everything that is installed."""
        lines = self.run("-m", "pip", "list", "--format=freeze").splitlines()
        return dict(line.split("==") for line in lines)

    def site_packages(self) -> Path:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(self.run("-c", code).strip())


def new_environment(folder: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return Environment(folder)


def link(source: str, target: str) -> None:
    """One file under two names: torch need not be unpacked twice."""
    try:
        os.link(source, target)
    except OSError:  # another disk, or a system without links
        shutil.copy2(source, target)
