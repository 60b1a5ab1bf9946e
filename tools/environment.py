"""Make the book's virtual environment, or run a script in it.

    python tools/environment.py                      make or renew .venv
    python tools/environment.py tools/run.py …       the same, then run the script there

Standard library only, and no syntax newer than Python 3.6, so that an old interpreter
reaches the message below instead of a syntax error.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent

# What makes stored outputs repeatable on Linux: one CPU thread, one instruction set.
# The last entry keeps the debugger, which every kernel loads, from warning.
FIXED = {
    "AIAYN_DEVICE": "cpu",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}


def variables(root, fixed=True):
    """The environment of every process that runs the book's code.

    Sources of ``root`` come first on the path. Without ``fixed`` the reader's own
    device and number of threads are used.
    """
    env = dict(os.environ)
    env["PYTHONPATH"] = str(Path(root) / "src")
    env["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    env["AIAYN_FIGURES"] = "external"  # the pages bring the figures' style and script
    if fixed:
        env.update(FIXED)
    return env


def python_of(venv):
    """The interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pins(root=ROOT):
    """A hash of everything that decides what is installed."""
    digest = hashlib.sha256()
    for name in ("requirements.txt", "constraints.txt"):
        path = root / name
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def package_hash(root):
    """A hash of the package's own metadata, which an editable install copies."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    metadata = text.split("[tool.pytest", 1)[0]  # tool settings install nothing
    return hashlib.sha256(metadata.encode()).hexdigest()


def ensure(root=ROOT):
    """Make or renew ``.venv`` unless it is current; return its interpreter."""
    if sys.version_info < OLDEST:
        raise SystemExit(
            "The book needs Python {}.{} or newer; {} is {}.{}.\n"
            "Name a newer one: make PYTHON=python3.12 …".format(
                *OLDEST, sys.executable, *sys.version_info[:2]
            )
        )
    venv = root / ".venv"
    python = python_of(venv)
    stamp = venv / "installed.txt"
    wanted = pins(root) + "\n" + package_hash(root) + "\n"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python

    if not python.exists():  # also when the interpreter it was made from is gone
        print(f"Making the virtual environment {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    print("Installing the pinned packages (a minute or two)", flush=True)
    install = [str(python), "-m", "pip", "install", "-qq"]
    install += ["--disable-pip-version-check"]
    pinned = ["-r", "requirements.txt", "-c", "constraints.txt"]
    package = ["--no-deps", "--no-build-isolation", "--editable", "."]
    for arguments in (pinned, package):
        if subprocess.run(install + arguments, cwd=str(root)).returncode:
            raise SystemExit("pip could not install what the book needs (see above).")
    stamp.write_text(wanted)
    return python


def inside(root=ROOT):
    """Whether this process already runs in ``.venv``."""
    return Path(sys.prefix).resolve() == (root / ".venv").resolve()


if __name__ == "__main__":
    interpreter = ensure()
    if len(sys.argv) > 1:
        sys.exit(subprocess.call([str(interpreter)] + sys.argv[1:]))
