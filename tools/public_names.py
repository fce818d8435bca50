"""List the public names of all packages, one per line, so that a diff shows new and lost names.

    python tools/public_names.py          compare with docs/reference/public_names.txt; exit 1 on a difference
    python tools/public_names.py --write  write that file
    python tools/public_names.py --count  print the number of names of each package

A public name is an entry of the `__all__` of a public module, and a module is public if no part of its dotted path
begins with an underscore. Names are read from the source (for old module paths, from the `.pyi` file) without importing
anything, so `__all__` must be a list.

A class or function in a public module is reported if it is not in `__all__` and its name does not begin with an
underscore. Constants and type aliases outside of `__all__` are internal.
"""

import ast
import difflib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "reference" / "public_names.txt"


def is_public(parts: tuple[str, ...]) -> bool:
    """Return whether a module path (without suffix) is public."""
    return not any(part.startswith("_") and part != "__init__" for part in parts)


def names_in(path: Path) -> list[str]:
    """Return the sorted entries of a module's `__all__`; none if it has no `__all__`.

    Raises:
        ValueError: `__all__` is not a list of strings.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                pass
            case _:
                continue
        try:
            return sorted(ast.literal_eval(value))
        except (ValueError, TypeError):
            raise ValueError(f"{path}, line {node.lineno}: `__all__` must be a list of strings") from None
    return []


def left_out(path: Path) -> list[str]:
    """Return the classes and functions of a module that look public and are not in its `__all__`, as `name (line)`."""
    listed = names_in(path)
    return [
        f"{node.name} (line {node.lineno})"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        # Names of pytest hooks.
        and not (node.name.startswith(("_", "pytest_")) or node.name in listed)
    ]


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the public modules with their files, by package."""
    for source in sorted(ROOT.glob("packages/*/src")):
        for path in sorted([*source.rglob("*.py"), *source.rglob("*.pyi")]):
            parts = path.relative_to(source).with_suffix("").parts
            if is_public(parts):
                yield ".".join(part for part in parts if part != "__init__"), path


def listing() -> Iterator[str]:
    """Yield the dotted public names, by package and module."""
    for module, path in modules():
        yield from (f"{module}.{name}" for name in names_in(path))


def main() -> int:
    found = list(listing())
    if "--count" in sys.argv[1:]:
        for package, count in Counter(name.partition(".")[0] for name in found).items():
            print(f"{package}: {count}")
        return 0
    if "--write" in sys.argv[1:]:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text("\n".join(found) + "\n")
        return 0
    recorded = RECORD.read_text().splitlines() if RECORD.exists() else []
    difference = list(difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=0))
    if difference:
        print("\n".join(difference))
        print(f"public names changed; if intended: python tools/public_names.py --write ({RECORD.relative_to(ROOT)})")
    strays = [f"{module}.{name}" for module, path in modules() for name in left_out(path)]
    for stray in strays:
        print(f"{stray}: name it in `__all__`, or begin its name with an underscore")
    return 1 if difference or strays else 0


if __name__ == "__main__":
    sys.exit(main())
