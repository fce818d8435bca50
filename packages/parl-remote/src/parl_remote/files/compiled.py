"""What a program imports whose text nobody kept: read from its compiled functions and classes.

    python < program.py, an interactive session --> functions and classes of __main__ --bytecode--> names of modules

Import statements at the top of such a program have run already; those within functions and methods are found here.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator, Mapping

__all__ = ["compiled_imports"]


def compiled_imports(namespace: Mapping[str, object]) -> tuple[str, ...]:
    """Names that may be modules, "a.b" for `from a import b` as well, sorted.

    Args:
        namespace: The variables of the main program; what it has imported itself is passed over.
    """
    module = namespace.get("__name__")
    own = [value for value in list(namespace.values()) if getattr(value, "__module__", None) == module]
    return tuple(sorted({name for value in own for code in _codes_of(value) for name in _imports_of(code)}))


def _codes_of(value: object) -> Iterator[types.CodeType]:
    """The code of a function or property, of a class all that it defines."""
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
