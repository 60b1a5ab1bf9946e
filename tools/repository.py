"""The repository's address: one setting, and one command that changes every copy.

    python tools/repository.py                check that every place agrees
    python tools/repository.py owner/name     rewrite every place

The setting is `[project.urls] Repository` in pyproject.toml. The other places are
copies that a reader needs where they stand: links, the first cell of each notebook,
the site.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

# Where the address must stand, in the form it must have there.
REQUIRED = {
    "pyproject.toml": ["https://{owner}.github.io/{name}/"],
    "README.md": ["github.com/{owner}/{name}"],
    "CITATION.cff": ["https://github.com/{owner}/{name}"],
    "_config.yml": [
        "url: https://github.com/{owner}/{name}\n",
        "repository_url: https://github.com/{owner}/{name}\n",
        "baseurl: https://{owner}.github.io/{name}/\n",
    ],
    "notebooks/*.ipynb": ["git+https://github.com/{owner}/{name}@"],
}
TEXT = {".cff", ".html", ".ipynb", ".js", ".md", ".py", ".toml", ".txt", ".yml"}


def address(root: Path) -> tuple[str, str]:
    """Owner and name, from the one setting."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    url = settings["project"]["urls"]["Repository"]
    owner, name = url.removeprefix("https://github.com/").split("/")
    return owner, name


def files(root: Path) -> Iterator[Path]:
    """Every text file of the project that is not built."""
    for path in sorted(root.iterdir()):
        if path.name in {".git", ".venv", "_build", "dist", "text"}:
            continue
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if (
                file.is_file()
                and file.suffix in TEXT
                and "__pycache__" not in file.parts
            ):
                yield file


def problems(root: Path) -> list[str]:
    """Places that name another owner, or lack the address where it must stand."""
    owner, name = address(root)
    found = []
    for pattern, forms in REQUIRED.items():
        paths = sorted(root.glob(pattern))
        if not paths and "*" not in pattern:
            found.append(f"{pattern} is missing")
        for path in paths:
            text = path.read_text(encoding="utf-8")
            for form in forms:
                wanted = form.format(owner=owner, name=name)
                if wanted not in text:
                    where = path.relative_to(root).as_posix()
                    found.append(f"{where}: `{wanted.strip()}` is not there")
    other = re.compile(rf"([\w-]+)(?:/|\.github\.io/){re.escape(name)}\b")
    for path in files(root):
        if path.is_relative_to(root / "tests"):
            continue  # tests plant wrong addresses
        owners = set(other.findall(path.read_text(encoding="utf-8"))) - {owner}
        for wrong in sorted(owners):
            where = path.relative_to(root).as_posix()
            found.append(f"{where}: names {wrong}/{name}, expected {owner}/{name}")
    return found


def rewrite(root: Path, new_owner: str, new_name: str) -> list[str]:
    """Write the new address in every place; return the files that changed."""
    owner, name = address(root)
    old = re.compile(rf"\b{re.escape(owner)}(/|\.github\.io/){re.escape(name)}\b")
    changed = []
    for path in files(root):
        text = path.read_text(encoding="utf-8")
        new = old.sub(rf"{new_owner}\1{new_name}", text)
        if new != text:
            path.write_text(new, encoding="utf-8", newline="\n")
            changed.append(path.relative_to(root).as_posix())
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("address", nargs="?", metavar="owner/name")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.address:
        if not re.fullmatch(r"[\w-]+/[\w.-]+", arguments.address):
            parser.error("the address is written owner/name")
        print("\n".join(rewrite(root, *arguments.address.split("/"))))
        print("now run: make export")
        return
    found = problems(root)
    print("\n".join(found) or "every place names {}/{}".format(*address(root)))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
