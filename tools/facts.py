"""What was executed and verified, where and when: the facts in the footer of the pages.

`make test` stores them when everything has passed, in _build/verified.json; `make site`
shows them while notebooks, package and pins are still those that passed. `make book`
stores what it executed on this machine beside its copies of the notebooks.
"""

import datetime
import hashlib
import json
import subprocess
from pathlib import Path

from environment import pins
from records import processor, write

NAME = "verified.json"  # book/_ext/verified.py reads it beside _config.yml


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def inputs(root: Path) -> str:
    """A hash of notebooks, stored outputs among them, of the package and the pins."""
    digest = hashlib.sha256(pins(root).encode())
    for folder in ("notebooks", "src"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            hidden = any(part.startswith(".") for part in name.parts)
            if path.is_file() and path.suffix != ".pyc" and not hidden:
                digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def commit(root: Path) -> str | None:
    """The commit of these files; none if they differ from it."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=root, capture_output=True, text=True
            )
        except OSError:  # there is no git
            return None
        return None if done.returncode else done.stdout.strip()

    return git("rev-parse", "HEAD") if git("status", "--porcelain") == "" else None


def circumstances(*, fixed: bool = True) -> dict:
    """Date, processor and torch; also the GPU, where notebooks may use one."""
    import torch

    machine = processor()
    if not fixed and torch.cuda.is_available():
        machine = f"{torch.cuda.get_device_name()}, {machine}"
    return {
        "date": datetime.date.today().isoformat(),
        "processor": machine,
        "torch": torch.__version__.split("+")[0],
    }


def store_passed(root: Path) -> None:
    """Every check has passed, here and today."""
    facts = {"commit": commit(root), **circumstances(), "inputs": inputs(root)}
    write(root / "_build" / NAME, {"passed": facts})


def passed(root: Path) -> dict:
    """The facts of a run of all checks; none if it was about other files."""
    facts = load(root / "_build" / NAME)
    return facts if facts and facts["passed"]["inputs"] == inputs(root) else {}


def store_executed(folder: Path, stem: str) -> None:
    """A notebook ran from top to bottom, here and today."""
    executed = load(folder / NAME).get("executed", {})
    executed[stem] = circumstances(fixed=False)
    write(folder / NAME, {"executed": executed})


def forget_executed(folder: Path, stem: str) -> None:
    """The outputs of a notebook are no longer those of a run here."""
    executed = load(folder / NAME).get("executed", {})
    if executed.pop(stem, None):
        write(folder / NAME, {"executed": executed})
