"""The reference page of each public module, for the documentation's build; `docs/hooks.py` calls it.

    public_names.listing()  ──►  add()     a page for each module, such as `reference/api/parl_core/agent.md`; an index
    the sources, by griffe  ──►            an error for a public name that has no docstring
    the site as written     ──►  check()   an error for a public name without an anchor on its module's page

Griffe reads sources without importing them, so the build needs no framework. A name is described on one page: that of
the module that defines it, if it is public, and else the shortest public path. Other modules that offer it have a line
with a link. The facade `parl` describes all its names itself, because they are what programs write.
"""

import ast
import posixpath
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import public_names

_PACKAGES = ("parl_core", "parl_remote", "parl_torch", "parl_paddle", "parl_evokit", "parl")
_FOLDER = "reference/api"
_ABOUT = {
    "parl": "what programs import: the facade over every installed part",
    "parl_core": "contracts, training loops, environments, replay, statistics; no framework",
    "parl_remote": "remote classes and functions",
    "parl_torch": "the PyTorch backend",
    "parl_paddle": "the PaddlePaddle backend",
    "parl_evokit": "evolution strategies",
}
_DOCS = Path(__file__).parent
_WITH_PROGRAMS = ("tutorials", "how-to", "reference/algorithms", "reference/evokit")  # in the order of their links
_MOST_PROGRAMS = 4
_BLOCK = re.compile(r"^( *)```python.*?^\1```$", re.MULTILINE | re.DOTALL)
_TOGETHER = re.compile(r"^( +)((?:\*{0,2}\w+, )+\*{0,2}\w+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


def _apart(entry: re.Match[str]) -> str:
    """Return an entry of several parameters, such as `device, compile: text`, as one for each."""
    return "\n".join(f"{entry[1]}{name}: {entry[3]}" for name in entry[2].split(", "))


def _expand_settings(cls: griffe.Class) -> None:
    """Replace `**settings: Unpack[...]` of a constructor by the parameters of its base that it stands for."""
    constructor = cls.members.get("__init__")
    if not isinstance(constructor, griffe.Function):
        return
    last = constructor.parameters[-1]
    if not (isinstance(last.annotation, griffe.ExprSubscript) and str(last.annotation).startswith("Unpack[")):
        return
    base = next(base for base in cls.mro() if "__init__" in base.members)
    _expand_settings(base)
    handed_on = cls.modules_collection[last.annotation.slice.canonical_path]
    names = {name for one in (handed_on, *handed_on.mro()) for name in one.members}
    del constructor.parameters[last.name]
    for parameter in base.members["__init__"].parameters:
        if parameter.name in names:
            constructor.parameters.add(parameter)


def _is_alias(attribute: griffe.Attribute) -> bool:
    """Return whether a module or class gives something that has a name a second one; fields and constants are none."""
    named = isinstance(attribute.value, griffe.ExprName | griffe.ExprAttribute)
    return named and "instance-attribute" not in attribute.labels


def _add_constructor(cls: griffe.Class) -> None:
    """Give a named tuple the constructor that its fields make, so that its page has a signature."""
    if "__init__" in cls.members or not any(str(base) == "NamedTuple" for base in cls.bases):
        return
    kind = griffe.ParameterKind.positional_or_keyword
    parameters = [griffe.Parameter("self", kind=kind)] + [
        griffe.Parameter(name, annotation=field.annotation, kind=kind, default=field.value)
        for name, field in cls.members.items()
        if isinstance(field, griffe.Attribute)
    ]
    cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))


class Docstrings(griffe.Extension):
    """What sources leave to others: the docstring of a contract or an alias, the settings of a base's constructor."""

    def on_node(self, *, node: Any, agent: Any, **_: Any) -> None:
        """Add the names of `first, second = one, two`, which griffe leaves out."""
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            return
        if not (isinstance(node.value, ast.Tuple) and isinstance(agent.current, griffe.Module)):
            return
        for target, value in zip(node.targets[0].elts, node.value.elts, strict=True):
            if isinstance(target, ast.Name):
                meaning = griffe.safe_get_expression(value, parent=agent.current, parse_strings=False)
                attribute = griffe.Attribute(target.id, value=meaning, lineno=node.lineno, endlineno=node.end_lineno)
                agent.current.set_member(target.id, attribute)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give docstrings to what has none and stands for something that has, and parameters to constructors."""
        self._complete(pkg)

    def _complete(self, scope: griffe.Module | griffe.Class) -> None:
        for member in list(scope.members.values()):
            if member.is_alias:
                continue
            if member.docstring:
                member.docstring.value = _TOGETHER.sub(_apart, member.docstring.value)
            if isinstance(member, griffe.Class):
                _add_constructor(member)
                _expand_settings(member)
            if isinstance(member, griffe.Class) and not member.docstring:
                member.docstring = next((base.docstring for base in member.mro() if base.docstring), None)
            elif isinstance(member, griffe.Attribute) and not member.docstring and _is_alias(member):
                member.docstring = griffe.Docstring(f"The same as `{member.value}`.", parent=member)
            if isinstance(member, griffe.Module | griffe.Class):
                self._complete(member)


@cache
def _loaded() -> griffe.ModulesCollection:
    sources = [str(path) for path in sorted(public_names.ROOT.glob("packages/*/src"))]
    extensions = griffe.load_extensions("griffe_inherited_docstrings", Docstrings)
    loader = griffe.GriffeLoader(search_paths=sources, extensions=extensions)
    for package in _PACKAGES:
        loader.load(package)
    loader.resolve_aliases(implicit=False, external=False)
    return loader.modules_collection


def _target(module: str, name: str) -> griffe.Object | None:
    """Return what a public name stands for; nothing where it is the standard library's or a framework's."""
    found = _loaded()[f"{module}.{name}"]
    try:
        return found.final_target if found.is_alias else found
    except griffe.AliasResolutionError:
        return None


@cache
def _modules() -> dict[str, list[str]]:
    """Return the public names by module."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in public_names.listing():
        module, _, name = path.rpartition(".")
        found[module].append(name)
    return dict(found)


@cache
def _homes() -> dict[str, str]:
    """Return where each object is described: its canonical path, and the public path of its description."""
    offered: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for module, names in _modules().items():
        for name in names:
            if target := _target(module, name):
                offered[target.path].append((module, name))
    homes = {}
    for path, offers in offered.items():
        defined = [offer for offer in offers if ".".join(offer) == path]
        module, name = (defined or sorted(offers, key=lambda offer: (offer[0].count("."), offer)))[0]
        homes[path] = f"{module}.{name}"
    return homes


def _page(module: str) -> str:
    folder = module.replace(".", "/")
    inner = any(other.startswith(module + ".") for other in _modules())
    return f"{_FOLDER}/{folder}/index.md" if inner else f"{_FOLDER}/{folder}.md"


def _text(module: str) -> str:
    lines = [f"# `{module}`", "", f"::: {module}", "    options: {members: [], show_root_heading: false}", ""]
    described, linked = [], []
    for name in _modules()[module]:
        path, target = f"{module}.{name}", _target(module, name)
        if target is None:
            linked.append(f"| [](){{#{path}}}`{name}` | `{_loaded()[path].target_path}` |")
        elif target.is_module:
            linked.append(f'| <span id="{path}">`{name}`</span> | {_module_line(target)} |')
        elif module == "parl" or _homes()[target.path] == path:
            described.append(name)
        else:
            linked.append(f"| [](){{#{path}}}[`{name}`][{_homes()[target.path]}] | {_first_sentence(target)} |")
    if programs := _programs_with(module):
        lines += [f"Programs that use it: {' · '.join(programs)}", ""]
    if linked:
        lines += ["| name | |", "| --- | --- |", *linked, ""]
    for name in described:
        lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)


@cache
def _programs() -> dict[str, tuple[str, str]]:
    """Return the title and the Python code of each page that has code, by its path."""
    found = {}
    for folder in _WITH_PROGRAMS:
        for file in sorted((_DOCS / folder).rglob("*.md")):
            text = file.read_text(encoding="utf-8")
            if not file.name.endswith(".cn.md") and (code := "\n".join(one[0] for one in _BLOCK.finditer(text))):
                title = text.partition("\n")[0].removeprefix("# ")
                found[file.relative_to(_DOCS).as_posix()] = title, code
    return found


def _programs_with(module: str) -> list[str]:
    """Return links to the pages whose programs use most of a module's names; every page uses the facade."""
    if module == "parl":
        return []
    names = "|".join(map(re.escape, _modules()[module]))
    used = re.compile(rf"\b(?:parl\w*|training)\.(?:\w+\.)*({names})\b|from parl[\w.]* import [^\n]*?\b({names})\b")
    uses = {page: len({*used.findall(code)}) for page, (_, code) in _programs().items()}
    most = sorted((page for page in uses if uses[page]), key=lambda page: -uses[page])[:_MOST_PROGRAMS]
    return [f"[{_programs()[page][0]}]({posixpath.relpath(page, posixpath.dirname(_page(module)))})" for page in most]


def _module_line(module: griffe.Object) -> str:
    """Return a module's link and first sentence, and links to its forms on each backend."""
    text = _first_sentence(module).removeprefix(f"`{module.path}`: ")
    if module.path in _modules():
        return f"[`{module.path}`][]: {text}"
    forms = [f"{home}.{module.name}" for home in ("parl_core", "parl_torch", "parl_paddle")]
    links = ", ".join(f"[`{form}`][]" for form in forms if form in _modules())
    return f"{text[0].upper()}{text[1:]} {links}"


def _first_sentence(target: griffe.Object) -> str:
    text = target.docstring.value if target.docstring else ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _undocumented() -> Iterator[str]:
    for module, names in _modules().items():
        if not _loaded()[module].docstring:
            yield f"the module {module}"
        for name in names:
            target = _target(module, name)
            if target is not None and not target.docstring and not target.is_module:
                yield f"{module}.{name}"


def add(files: Files, config: Any) -> None:
    """Add the pages to those of the site.

    Raises:
        PluginError: A public name has no docstring.
    """
    if missing := list(_undocumented()):
        raise PluginError(f"{len(missing)} public names without a docstring: {', '.join(missing)}")
    for module in _modules():
        files.append(File.generated(config, _page(module), content=_text(module)))
    files.append(File.generated(config, f"{_FOLDER}/index.md", content=_index()))


def _index() -> str:
    lines = ["# Python API", "", "Every public module and name, from the sources. Programs write `import parl`.", ""]
    for package in ("parl", *_PACKAGES[:-1]):
        modules = [module for module in _modules() if module.partition(".")[0] == package]
        names = sum(len(_modules()[module]) for module in modules)
        lines += [f"## `{package}`", "", f"{_ABOUT[package]} ({len(modules)} modules, {names} names)".capitalize(), ""]
        lines += ["| module | |", "| --- | --- |"]
        for module in modules:
            page = _page(module).removeprefix(f"{_FOLDER}/")
            lines.append(f"| [`{module}`]({page}) | {_first_sentence(_loaded()[module])} |")
        lines.append("")
    return "\n".join(lines)


def navigation() -> list[Any]:
    """Return the navigation of the pages: an entry per package, with its modules in it."""
    found: list[Any] = [f"{_FOLDER}/index.md"]
    for package in ("parl", *_PACKAGES[:-1]):
        modules = [module for module in _modules() if module.partition(".")[0] == package]
        found.append(
            {
                package: [
                    _page(module) if module == package else {module.partition(".")[2]: _page(module)}
                    for module in modules
                ]
            }
        )
    return found


def check(site: Path) -> str:
    """Look for an anchor of every public name on its module's page in the built site; return a line that counts them.

    Raises:
        PluginError: One is missing.
    """
    missing, names = [], 0
    for module in _modules():
        page = Path(site, _page(module).removesuffix("index.md").removesuffix(".md"), "index.html")
        written = page.read_text(encoding="utf-8")
        for name in _modules()[module]:
            names += 1
            if f'id="{module}.{name}"' not in written:
                missing.append(f"{module}.{name}")
    if missing:
        raise PluginError(f"{len(missing)} public names without a place on a reference page: {', '.join(missing)}")
    return f"Reference: {len(_modules())} modules, {names} public names, each with its place on a page"
