"""Which module uses which: chapters build on earlier chapters only.

    python tools/import_graph.py      fail on a forward edge

The order of the chapters is the order of the notebooks. A module imports from earlier
chapters and from tokens.py. A notebook may use a later module in a section whose
heading says "Preview". `make book` asks here what a notebook depends on.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from notebooks import chapters, code_cells, headings, module_of, python_source, read

FIRST = {"tokens"}  # hand-written, before all chapters


def module_files(root: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name below ``aiayn``; "" is itself."""
    package = root / "src" / "aiayn"
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__")] = path
    return found


def defined_names(path: Path) -> set[str]:
    """The public names that a module defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {t.id for t in targets if isinstance(t, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except what stands under `if TYPE_CHECKING:`, which never runs."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
        yield from run_nodes(child)


class Package:
    """The package's modules, their names and the edges between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = module_files(root)
        self.home = {  # public name -> module, for `from aiayn import name`
            name: module
            for module, path in self.files.items()
            if module and not module.startswith("book")
            for name in defined_names(path)
        }

    def uses(self, source: str, inside: str | None = None) -> set[str]:
        """The modules that Python source imports; ``inside`` is its own module."""
        return set(self._uses(ast.parse(source), inside))

    def _uses(self, tree: ast.AST, inside: str | None) -> Iterator[str]:
        for node in run_nodes(tree):
            match node:
                case ast.ImportFrom(module=module, level=0, names=names) if module:
                    if module.split(".")[0] == "aiayn":
                        yield from self._from(module.split(".")[1:], names)
                case ast.ImportFrom(module=module, level=level, names=names):
                    is_package = self.files[inside].name == "__init__.py"
                    parts = inside.split(".") if inside else []
                    base = parts[: len(parts) - level + is_package]
                    yield from self._from(base + (module or "").split("."), names)
                case ast.Import(names=names):
                    for alias in names:
                        if alias.name.split(".")[0] == "aiayn":
                            yield from self._parents(alias.name.split(".")[1:])
                case ast.Attribute(value=ast.Name(id="aiayn"), attr=name):
                    yield from self._resolve([], name)

    def _from(self, parts: list[str], names: list[ast.alias]) -> Iterator[str]:
        parts = [part for part in parts if part]
        yield from self._parents(parts)
        for alias in names:
            yield from self._resolve(parts, alias.name)

    def _parents(self, parts: list[str]) -> Iterator[str]:
        """A module and the packages that its import runs first."""
        for end in range(len(parts) + 1):
            if (name := ".".join(parts[:end])) in self.files:
                yield name

    def _resolve(self, parts: list[str], name: str) -> Iterator[str]:
        """What `from PARTS import NAME` reaches besides the package PARTS itself."""
        if (module := ".".join([*parts, name])) in self.files:
            yield module
        elif not parts and name in self.home:
            yield self.home[name]

    def edges(self, module: str) -> set[str]:
        source = self.files[module].read_text(encoding="utf-8")
        return self.uses(source, module) - {module}

    def closure(self, modules: set[str]) -> set[str]:
        """The modules and everything that they import in turn."""
        reached, waiting = set(), list(modules)
        while waiting:
            if (module := waiting.pop()) not in reached:
                reached.add(module)
                waiting += self.edges(module)
        return reached

    def notebook_uses(self, notebook) -> set[str]:
        """Every module that the cells of a notebook import, transitively."""
        direct = (self.uses(python_source(cell)) for cell in code_cells(notebook))
        return self.closure(set().union(*direct))


def order(root: Path) -> dict[str, int]:
    """Each chapter's module and its number."""
    found = {}
    for path in chapters(root):
        if module := module_of(read(path)):
            found[module] = int(path.name[:2])
    return found


def forward_edges(root: Path) -> list[str]:
    """Each use of a later chapter, in words."""
    package, number, found = Package(root), order(root), []
    for module, chapter in number.items():
        if module not in package.files:
            continue  # not exported yet: export --check says so
        for used in sorted(package.edges(module) - FIRST - {""}):
            if used not in number or number[used] >= chapter:
                found.append(f"src/aiayn/{module}.py imports {used}")
        if "" in package.edges(module):
            source = package.files[module].read_text(encoding="utf-8")
            if "from . import" in source or "from aiayn import" in source:
                found.append(f"src/aiayn/{module}.py imports the whole package")
    for module in sorted(FIRST & set(package.files)):
        for used in sorted(package.edges(module) - {""}):
            found.append(f"src/aiayn/{module}.py imports {used}")
    for path in chapters(root):
        chapter = int(path.name[:2])
        preview = None  # the level of the heading that opened a Preview section
        for cell in read(path).cells:
            for level, text in headings(cell):
                if preview is None or level <= preview:
                    preview = level if "Preview" in text else None
            if cell.cell_type != "code" or preview is not None:
                continue
            for used in sorted(package.uses(python_source(cell))):
                if number.get(used, 0) > chapter:
                    found.append(
                        f"notebooks/{path.name} {cell.id} uses {used} (chapter "
                        f"{number[used]}) outside a section headed Preview"
                    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    found = forward_edges(parser.parse_args().root.resolve())
    print("\n".join(found) or "chapters use earlier chapters only")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
