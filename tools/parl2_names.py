"""Make docs/reference/parl-2-names.md: the public names of PARL 2.x and their state in this project.

    python tools/parl2_names.py PARL torch=PYTHON paddle=PYTHON          compare with the page; exit 1 on a difference
    python tools/parl2_names.py PARL torch=PYTHON paddle=PYTHON --write write the page

PARL is the folder `parl` of an unpacked `parl==2.2.1` (`pip download --no-deps parl==2.2.1`); its source is read, not
run. Each PYTHON has this project with one backend, and reports the state of each name.

A name is public if no part of its path begins with an underscore and it does not belong to the cluster's own processes
or to tests; a package also has the names of modules that it imports with a star. A function or class works if it
accepts every argument of PARL 2.x by name.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "parl-2-names.md"
_LEFT_OUT = ("test", "heartbeat", "_pb2", "remote_constants", "compatible_trick", "zmq_utils", "remote.utils")
_HEAD = """# Names of PARL 2.x

This page lists the public names of PARL 2.2.1 and their state in this project. `tools/parl2_names.py` reads the names
from that release's source and imports them on each backend; a test compares this page with the results.
[Coming from PARL](../how-to/migrate.md) describes the replacements; `parl migrate` finds the lines to change.

- *works*: the name exists and accepts each argument of PARL 2.x by its name.
- *message*: importing or using it raises an error that names the replacement.
- *changed*: the name differs on purpose; the last column describes the difference.

Where functions of PARL 2.x raised `AssertionError`, as `check_model_method` did, those of this project raise errors of
`parl_core.errors` that are `TypeError` or `ValueError`.

"""
_HELPER = "a helper of PARL's own code"
_BY_POSITION = "other names of the same arguments: give them by position"
_STATIC = "an agent defines it for static graphs, on paddle; without it updates are eager"
_ONE_UPDATE = "learn() does both steps"
CHANGED = {
    r"\.layers_add_n$": _HELPER,
    r"\.(SAC|TD3)\.(actor|critic)_learn$": _ONE_UPDATE,
    r"fluid.*\.(model_ids|get_model_ids|get_weights|set_weights|model_id)$": "an algorithm knows its models by name",
    r"Agent\.build_program$": _STATIC,
    r"\.PolicyDistribution\.kl$": "each distribution has it",
    r"\.(exceptions|remote)\.\w+Error$": "raised by parl-remote, not made by programs",
    r"\.(get_wrapper_by_cls|set_weights|IQL\.predict)$": _BY_POSITION,
    r"DecisionTransformer\.(learn|predict)$": _BY_POSITION,
    r"\.(MAPPO|COMA|QMIX)(\.\w+)?$": "of joint observations, see docs/how-to/several-agents.md",
    r"\.MADDPG(\.\w+)?$": "of one agent where agent_index is given, see docs/reference/algorithms/maddpg.md",
    r"torch\.a2c\.A2C\.learn$": "`learning_rate`, as on paddle; `lr` by position",
    r"(fluid.*(sync_target|Agent\.(save|restore))|from_importance_weights)$": "arguments of static graphs are gone",
    r"fluid\.(sac\.SAC|td3\.TD3)$": "one model with `policy` and `value`; actions lie in [-1, 1]",
}
"""Names that differ on purpose, with the reason."""


class Source:
    """The modules of PARL 2.x, read from files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.modules = sorted(self._modules())

    def _modules(self) -> Iterator[str]:
        for path in self._folder.rglob("*.py"):
            parts = ("parl", *path.relative_to(self._folder).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not any(word in name for word in _LEFT_OUT):
                yield name

    def names(self, module: str) -> dict[str, list[str] | None]:
        """Return the public names of a module (or of a package with its modules), with the arguments of callables."""
        path = self._folder.joinpath(*module.split(".")[1:])
        has_all = path.is_dir() and ".fluid" not in module  # these packages also have layers and helpers of fluid
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        found: dict[str, list[str] | None] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module in self.modules:
                if not has_all:
                    continue
                found |= {name: taken for name, taken in self.names(node.module).items() if "." not in name}
            elif isinstance(node, ast.FunctionDef):
                found[node.name] = _arguments(node)
            elif isinstance(node, ast.ClassDef):
                made = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                found[node.name] = next((_arguments(each)[1:] for each in made if each.name == "__init__"), [])
                if module.startswith(("parl.core", "parl.algorithms")) or node.name == "ReplayMemory":
                    found |= {f"{node.name}.{each.name}": _arguments(each)[1:] for each in made}
        return {name: arguments for name, arguments in found.items() if not any(p[:1] == "_" for p in name.split("."))}


def _arguments(function: ast.FunctionDef) -> list[str]:
    taken = function.args
    return [each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]


def ask(names: dict[str, dict[str, list[str] | None]]) -> dict[str, str]:
    """Return the state of each name in this process: `works`, `changed: ...`, `message: ...` or `missing: ...`."""
    from importlib import import_module

    verdicts = {}
    for module, members in names.items():
        try:
            found = import_module(module)
        except ImportError as error:
            said = str(error)
            told = not said.startswith("No module named")
            verdicts[module] = f"message: {said.partition(': ')[2] or said}" if told else f"missing: {said}"
            continue
        verdicts[module] = "works"
        for name, arguments in members.items():
            verdicts[f"{module}.{name}"] = _member(found, name, arguments)
    return verdicts


def _member(module: Any, name: str, arguments: list[str] | None) -> str:
    import inspect

    value = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except (AttributeError, ImportError) as error:
            said = str(error)
            return f"message: {said.partition(': ')[2]}" if ": " in said else f"missing: {said}"
    if not callable(value):
        return "works" if arguments is None else f"changed: no callable but {type(value).__name__}"
    try:
        taken = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return "works"
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in taken.values()):
        return "works"
    lacking = [each for each in arguments or () if each not in taken]
    return f"changed: takes {', '.join(taken) or 'nothing'}, not {', '.join(lacking)}" if lacking else "works"


def page(rows: dict[str, dict[str, str]]) -> str:
    """Return the text of the page from the states of the names on each backend."""
    kinds = Counter(verdict.partition(":")[0] for verdicts in rows.values() for verdict in {*verdicts.values()})
    lines = [_HEAD, ", ".join(f"{kinds[kind]} {kind}" for kind in ("works", "message", "changed", "missing")) + ".\n"]
    lines.append("\n| name | torch | paddle | |\n| --- | --- | --- | --- |\n")
    for name, verdicts in sorted(rows.items()):
        kind = {backend: verdict.partition(": ") for backend, verdict in verdicts.items()}
        notes = "; ".join(dict.fromkeys(note for _, _, note in kind.values() if note))
        shown = [kind[backend][0] if backend in kind else "" for backend in ("torch", "paddle")]
        lines.append(f"| `{name}` | {' | '.join(shown)} | {notes.replace('|', chr(92) + '|')} |\n")
    return "".join(lines)


def main() -> int:
    """Compare or write the page."""
    if sys.argv[1:] == ["--ask"]:
        print(json.dumps(ask(json.load(sys.stdin))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parl", type=Path, help="the folder `parl` of PARL 2.2.1")
    parser.add_argument("python", nargs=2, help="torch=PYTHON paddle=PYTHON")
    parser.add_argument("--write", action="store_true", help="write the page")
    arguments = parser.parse_args()
    source = Source(arguments.parl)
    rows: dict[str, dict[str, str]] = {}
    for backend, python in (each.split("=") for each in arguments.python):
        other = "paddle" if backend == "torch" else "torch"
        of_other = tuple(f"parl.{part}.{other}" for part in ("algorithms", "core"))
        names = {module: source.names(module) for module in source.modules if not module.startswith(of_other)}
        command = [python, __file__, "--ask"]
        asked = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, check=True)
        for name, verdict in json.loads(asked.stdout.splitlines()[-1]).items():
            if verdict.startswith(("changed", "missing")):
                reason = next((told for pattern, told in CHANGED.items() if re.search(pattern, name)), None)
                verdict = f"changed: {reason}" if reason else f"missing: {verdict.partition(': ')[2]}"
            rows.setdefault(name, {})[backend] = verdict
    text = page(rows)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    missing = [name for name, verdicts in rows.items() if any(each.startswith("missing") for each in verdicts.values())]
    print("\n".join(f"{name}: {rows[name]}" for name in missing))
    same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    return int(bool(missing) or not same)


if __name__ == "__main__":
    sys.exit(main())
