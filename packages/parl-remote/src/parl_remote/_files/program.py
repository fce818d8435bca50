"""The program's own code: its main script and the Python files beside it, the classes' modules, and their imports.

python main.py      main.py is read, all *.py beside it are sent
python -m pkg.main  the same, and the rest of the package
python -c           the given text is read; all *.py of the current directory are sent
stdin, a prompt     compiled functions and classes are read; all *.py of the current directory are sent
a notebook          its cells are read; all *.py of the current directory are sent

Their imports are found by parsing code without running it (`closure`):

    seeds (the main program, classes, imported modules) --ast--> modules' names --finders--> files --ast--> ...

A module is the user's own if it lies outside the standard library and all site-packages; an editable install is own,
too, because another host has another state of it or none. Import statements are read everywhere, also within functions,
and so are calls of `import_module` and `__import__` with a literal name. A regular package is included with everything
importable, so that modules which it loads by computed names are there; a namespace package only with its imported
modules. PARL's own packages are never sent: each node has them.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.machinery
import inspect
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parl_remote._data.ownership import is_own, working_dir

__all__ = ["OwnCode", "OwnFile", "RootSource", "closure", "compiled_imports", "find_spec", "loaded_modules", "own_code"]


_NOT_SENT = frozenset({"parl", "parl_core", "parl_remote", "parl_torch", "parl_paddle", "parl_evokit"})
_SUFFIXES = tuple(importlib.machinery.all_suffixes())


@dataclass(frozen=True, slots=True)
class OwnFile:
    """One file of the user's code.

    Attributes:
        root: The directory in which its name is found, an entry of `sys.path` in most cases; an archive's own path.
        path: Its path below the root, with "/" as separator; empty for an archive, which is its own root.
        file: Its path on this host.
    """

    root: str
    path: str
    file: str


@dataclass(frozen=True, slots=True)
class RootSource:
    """Code to start from.

    Attributes:
        source: The code.
        package: The package that its relative imports start from.
    """

    source: str
    package: str = ""


def closure(seeds: Iterable[RootSource], modules: Iterable[str]) -> list[OwnFile]:
    """Return all of the user's own files that the seeds and the modules need, in no particular order.

    Args:
        seeds: Code without a module of its own, such as the main program.
        modules: Names of modules that are needed in any case; those that are not the user's own are skipped.
    """
    found: dict[str, OwnFile] = {}
    seen: set[str] = set()
    waiting: deque[str] = deque(modules)
    for seed in seeds:
        waiting.extend(_imports(_parsed(seed.source), seed.package))
    while waiting:
        name = waiting.popleft()
        if name in seen:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        if name.partition(".")[0] in _NOT_SENT:
            continue
        spec = find_spec(name)
        if spec is None:
            continue  # an attribute and no module, or one that this host lacks as well
        for own in _files(spec):
            found.setdefault(own.file, own)
        origin = _file_of(spec)
        if not origin:
            continue
        if spec.submodule_search_locations is not None and not _is_regular_package(parent):
            for own, inner in _beneath(name, spec.submodule_search_locations):
                found[own.file] = own
                waiting.append(inner)
        if origin.endswith(".py"):
            package = name if spec.submodule_search_locations is not None else parent
            waiting.extend(_imports_of_file(origin, _stamp(origin), package))
    return list(found.values())


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return a module's specification, without importing its packages; None if there is no such module."""
    path: Iterable[str] | None = None
    spec = None
    at = ""
    for part in name.split("."):
        if not part:
            return None
        at = f"{at}.{part}" if at else part
        spec = _ask_finders(at, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and at != name:
            return None
    return spec


def _ask_finders(name: str, path: Iterable[str] | None) -> importlib.machinery.ModuleSpec | None:
    loaded = sys.modules.get(name)
    known = getattr(loaded, "__spec__", None)
    if isinstance(known, importlib.machinery.ModuleSpec) and known.name == name:
        return known
    for finder in sys.meta_path:
        ask = getattr(finder, "find_spec", None)
        try:
            spec = ask(name, path) if ask is not None else None
        except Exception:  # another library's finder that supports no look-up before an import
            continue
        if isinstance(spec, importlib.machinery.ModuleSpec):
            return spec
    return _nested_namespace(name, path) if path is not None else None


def _nested_namespace(name: str, path: Iterable[str]) -> importlib.machinery.ModuleSpec | None:
    """Return a nested namespace package, which Python's own finder finds only if the outer one is imported."""
    places = [place for above in path if os.path.isdir(place := os.path.join(above, name.rpartition(".")[2]))]
    if not places:
        return None
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = places
    return spec


def _files(spec: importlib.machinery.ModuleSpec) -> Iterator[OwnFile]:
    """Yield the file of one module; namespace packages have none."""
    origin = _file_of(spec)
    if not origin:
        return
    archive = getattr(spec.loader, "archive", None)
    if isinstance(archive, str):
        yield OwnFile(archive, "", archive)
        return
    inner = spec.name.replace(".", "/")
    suffix = next((suffix for suffix in sorted(_SUFFIXES, key=len, reverse=True) if origin.endswith(suffix)), "")
    path = f"{inner}/__init__{suffix}" if spec.submodule_search_locations is not None else f"{inner}{suffix}"
    yield OwnFile(_root(origin, path), path, origin)


def _file_of(spec: importlib.machinery.ModuleSpec) -> str:
    """Return the file of a module of the user's own; empty for other modules, and for namespace packages.

    pytest's "importlib" mode makes namespace packages of the directories above a test, with a directory for the file.
    """
    origin = spec.origin
    return "" if origin is None or not is_own(origin) or os.path.isdir(origin) else origin


def _is_regular_package(name: str) -> bool:
    spec = find_spec(name) if name else None
    return spec is not None and bool(_file_of(spec))


def _beneath(name: str, locations: Iterable[str]) -> Iterator[tuple[OwnFile, str]]:
    """Yield all importable files below a package, with the names of their modules."""
    for location in locations:
        top = name.replace(".", "/")
        root = _root(os.path.join(location, "__init__.py"), f"{top}/__init__.py")
        for directory, inner_directories, files in os.walk(location):
            inner_directories[:] = sorted(i for i in inner_directories if i.isidentifier() and i != "__pycache__")
            below = os.path.relpath(directory, location).replace(os.sep, "/")
            package = top if below == "." else f"{top}/{below}"
            for file in sorted(files):
                stem = file.partition(".")[0]
                if file.endswith(_SUFFIXES) and stem.isidentifier():
                    module = package if stem == "__init__" else f"{package}/{stem}"
                    yield OwnFile(root, f"{package}/{file}", os.path.join(directory, file)), module.replace("/", ".")


def _root(origin: str, path: str) -> str:
    """Return the directory above a module's own path, or the directory that a finder maps the name to."""
    tail = os.sep + path.replace("/", os.sep)
    return origin.removesuffix(tail) or os.sep if origin.endswith(tail) else os.path.dirname(origin)


def _stamp(file: str) -> tuple[int, int]:
    """Return time and size of a file, which change with it."""
    try:
        status = os.stat(file)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4096)
def _imports_of_file(file: str, stamp: tuple[int, int], package: str) -> tuple[str, ...]:  # noqa: ARG001  # of the cache
    try:
        with open(file, "rb") as opened:
            return tuple(_imports(_parsed(opened.read()), package))
    except OSError:
        return ()


def _parsed(source: str | bytes) -> ast.AST:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])  # importing it raises the error


def _imports(tree: ast.AST, package: str) -> list[str]:
    """Return names that may be modules, with "a.b" for `from a import b` as well."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            if base:
                names.append(base)
                names.extend(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and (name := _literal_import(node)):
            level = len(name) - len(name.lstrip("."))
            names.append(_absolute(name[level:], level, package))
    return [name for name in names if name]


def _literal_import(call: ast.Call) -> str:
    """Return the name in `import_module("name")`; for a computed name the package that it begins with."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called not in {"import_module", "__import__"}:
        return ""
    given: Sequence[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
    name = given[0] if given else None
    if isinstance(name, ast.JoinedStr) and name.values:
        name = name.values[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return name.value.rpartition(".")[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def _absolute(name: str, level: int, package: str) -> str:
    if not level:
        return name
    parts = package.split(".") if package else []
    if level > len(parts):
        return ""
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}" if name else base


def loaded_modules() -> list[str]:
    """Return the names of the user's own modules that this process has imported."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name != "__main__"
        and isinstance(module, types.ModuleType)
        and isinstance(file := getattr(module, "__file__", None), str)
        and is_own(file)
        and all(part.isidentifier() for part in name.split("."))
    ]


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
    return len(sys.modules), len(cells), _unwritten_imports(), tuple(map(str, sys.path)), working_dir()


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
        here = working_dir() if is_program else ""
        return here, here, ""
    directory = os.path.dirname(os.path.abspath(file))
    if not is_own(os.path.abspath(file)):  # a tool such as pytest runs the user's code; that is imported, then
        return "", "", ""
    package = getattr(main, "__package__", None) or ""
    tail = os.sep + package.replace(".", os.sep)
    if package and directory.endswith(tail):
        return directory, directory.removesuffix(tail), package
    return directory, directory, ""


def _main_seeds(package: str) -> Iterator[RootSource]:
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if is_own(os.path.abspath(file)):
                with open(file, encoding="utf-8") as opened:
                    yield RootSource(opened.read(), package)
        return
    cells = getattr(main, "In", None)  # where IPython keeps what was entered
    if isinstance(cells, list):
        for cell in cells:
            yield RootSource(_without_magic(str(cell)))
    elif "-c" in sys.orig_argv[1:-1]:
        yield RootSource(sys.orig_argv[sys.orig_argv.index("-c") + 1])


def _unwritten_imports() -> tuple[str, ...]:
    """Return the imports of a main program that came from a pipe, a prompt or an archive, where it has no text."""
    main = sys.modules.get("__main__")
    if main is None or hasattr(main, "In") or "-c" in sys.orig_argv[1:-1]:
        return ()
    file = getattr(main, "__file__", None)  # "<stdin>" from a pipe
    return compiled_imports(vars(main)) if file is None or not os.path.isfile(file) else ()


def _without_magic(cell: str) -> str:
    """Return a cell without IPython's own lines, which are not Python."""
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
