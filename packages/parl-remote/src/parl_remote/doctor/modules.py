"""Which modules a program imports, read from its text without running it."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["imports_of"]


def imports_of(script: Path) -> tuple[str, ...]:
    """The modules that workers must have installed for a program or a notebook to run there.

    Left out are Python's own, those that lie beside the program (they are sent along), and those that the program can
    do without: imported within `try`, or only for type checkers.

    Raises:
        OSError: The file cannot be read.
        SyntaxError: It is no Python.
        ValueError: It is no notebook, though its name says so.
    """
    folder = script.absolute().parent
    text = _code_of(script.read_text()) if script.suffix == ".ipynb" else script.read_bytes()
    names = set(_imported(ast.parse(text, str(script)).body))
    return tuple(sorted(name for name in names if name not in sys.stdlib_module_names and not _beside(folder, name)))


def _code_of(notebook: str) -> str:
    """The code of a notebook without what only IPython understands."""
    try:
        sources = [cell["source"] for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("it is no notebook") from error
    lines = "\n".join("".join(source) for source in sources).splitlines()
    return "\n".join("pass" if line.startswith(("%", "!", "?")) else line for line in lines)


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Try(handlers=handlers) if handlers:
                yield from _imported(node.finalbody)
            case ast.If(test=test) if _only_for_types(test):
                yield from _imported(node.orelse)
            case _:
                for field in ("body", "orelse", "finalbody"):
                    inner = getattr(node, field, None)
                    if isinstance(inner, list):
                        yield from _imported(inner)


def _only_for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _beside(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").exists() or (folder / name).is_dir()
