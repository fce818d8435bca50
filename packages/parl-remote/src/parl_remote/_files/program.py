"""The program's own code: its main script and the Python files beside it, the classes' modules, and their imports.

python main.py      main.py is read, all *.py beside it are sent
python -m pkg.main  the same, and the rest of the package
python -c           the given text is read; all *.py of the current directory are sent
stdin, a prompt     compiled functions and classes are read; all *.py of the current directory are sent
a notebook          its cells are read; all *.py of the current directory are sent
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping

from parl_remote._data.ownership import is_own
from parl_remote._files.import_closure import OwnFile, Seed, closure, loaded_modules

__all__ = ["OwnCode", "compiled_imports", "own_code"]


def compiled_imports(namespace: Mapping[str, object]) -> tuple[str, ...]:
    """Return names that may be modules, with "a.b" for `from a import b` as well, sorted.

    Args:
        namespace: The variables of the main program; objects that it has imported are skipped.
    """
    module = namespace.get("__name__")
    own = [value for value in list(namespace.values()) if getattr(value, "__module__", None) == module]
    return tuple(sorted({name for value in own for code in _codes_of(value) for name in _imports_of(code)}))


def _codes_of(value: object) -> Iterator[types.CodeType]:
    """Yield the code of a function or property, or of all that a class defines."""
    if isinstance(value, type):
        inner = f"{value.__qualname__}."
        for member in list(vars(value).values()):
            if not isinstance(member, type) or member.__qualname__.startswith(inner):
                yield from _codes_of(member)
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset, value.fdel):
            yield from _codes_of(accessor)
    else:
        function = inspect.unwrap(value) if callable(value) else getattr(value, "__func__", None)
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            yield from _with_inner(code)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _imports_of(code: types.CodeType) -> Iterator[str]:
    base = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            base = str(instruction.argval)
            yield base
        elif instruction.opname == "IMPORT_FROM":
            yield f"{base}.{instruction.argval}"


class OwnCode:
    """Caches the result of `own_code` until its inputs change, since reading large programs takes a while."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, list[OwnFile], dict[str, tuple[int, int]]]] = {}

    def of(self, class_module: str) -> list[OwnFile]:
        """Return the code for a class; see `own_code`."""
        state = _state()
        known = self._known.get(class_module)
        if known is not None and known[0] == state and known[2] == _stamps(known[2]):
            return known[1]
        found = own_code(class_module)
        paths = {own.file for own in found}
        stamps = _stamps({_main_place()[0], *paths, *map(os.path.dirname, paths)} - {""})
        self._known[class_module] = state, found, stamps
        return found


def _state() -> object:
    """Return a value that changes when modules may be added or found elsewhere without a changed file."""
    cells = getattr(sys.modules.get("__main__"), "In", ())
    return len(sys.modules), len(cells), _unwritten_imports(), tuple(map(str, sys.path)), _current_directory()


def _stamps(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return time and size of files and directories, which change when those are modified."""
    stamps = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps[path] = (0, 0)
        else:
            stamps[path] = (status.st_mtime_ns, status.st_size)
    return stamps


def own_code(class_module: str) -> list[OwnFile]:
    """Return all files that an actor on another host may have to import.

    Args:
        class_module: Name of the module that the actor's class is defined in.
    """
    directory, root, package = _main_place()
    modules = [*loaded_modules(), *_unwritten_imports(), class_module]
    if package:
        modules.append(package)
    found = {own.file: own for own in closure(_main_seeds(package), modules)}
    if directory:
        for own in _beside(directory, root, package):
            found.setdefault(own.file, own)
    return list(found.values())


def _main_place() -> tuple[str, str, str]:
    """Return the main program's directory, the root of its imports, and its package."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None:  # a notebook, -c, stdin
        is_program = main is not None and "XPARL" not in os.environ
        here = _current_directory() if is_program else ""
        return here, here, ""
    directory = os.path.dirname(os.path.abspath(file))
    if not is_own(os.path.abspath(file)):  # a tool such as pytest runs the user's code; that is imported, then
        return "", "", ""
    package = getattr(main, "__package__", None) or ""
    tail = os.sep + package.replace(".", os.sep)
    if package and directory.endswith(tail):
        return directory, directory.removesuffix(tail), package
    return directory, directory, ""


def _main_seeds(package: str) -> Iterator[Seed]:
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if is_own(os.path.abspath(file)):
                with open(file, encoding="utf-8") as opened:
                    yield Seed(opened.read(), package)
        return
    cells = getattr(main, "In", None)  # where IPython keeps what was entered
    if isinstance(cells, list):
        for cell in cells:
            yield Seed(_without_magic(str(cell)))
    elif "-c" in sys.orig_argv[1:-1]:
        yield Seed(sys.orig_argv[sys.orig_argv.index("-c") + 1])


def _unwritten_imports() -> tuple[str, ...]:
    """Return the imports of a main program that came from a pipe, a prompt or an archive, where it has no text."""
    main = sys.modules.get("__main__")
    if main is None or hasattr(main, "In") or "-c" in sys.orig_argv[1:-1]:
        return ()
    file = getattr(main, "__file__", None)  # "<stdin>" from a pipe
    return compiled_imports(vars(main)) if file is None or not os.path.isfile(file) else ()


def _without_magic(cell: str) -> str:
    """Return a cell without IPython's own lines, which are no Python."""
    return "\n".join(line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!", "?")))


def _beside(directory: str, root: str, package: str) -> Iterator[OwnFile]:
    """Yield the Python files beside the main program, which PARL has always sent."""
    inner = f"{package.replace('.', '/')}/" if package else ""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        file = os.path.join(directory, name)
        if name.endswith(".py") and os.path.isfile(file):
            yield OwnFile(root, inner + name, file)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""
