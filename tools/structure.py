"""The structure of the packages: how many modules, how they import each other, how many functions one action enters.

    python tools/structure.py                    a table with one row per package
    python tools/structure.py -v                 with chains, cycles and the modules that one other imports
    python tools/structure.py --check            print cycles of imports, imports in functions that neither `LATE` nor
                                                 `LATE_ANYWHERE` names, and packages that have more modules or a
                                                 longer chain than `LIMITS` allows; exit 1 if there are any
    python tools/structure.py --entered remote   functions and files entered by making an actor and by one call
    python tools/structure.py --entered learn    the same for one update of DQN

Imports are read from the source without importing anything; `--entered` runs a small program and needs parl-remote or a
backend. Every import counts for a cycle: those of a module, of its functions, of `import_module("name")` and those for
type checkers only. A chain consists of imports of modules, which Python follows when the first one is imported.
"""

import argparse
import ast
import io
import sys
import threading
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("parl", "parl_core", "parl_torch", "parl_paddle", "parl_remote", "parl_evokit")

# The most modules of a package, and the length of its longest chain of imports.
LIMITS = {"parl_core": (130, 21), "parl_remote": (170, 12), "parl_evokit": (60, 14)}

START = "the start of programs and commands"
NODE = "the start of a node and its actors"
OPTIONAL = "an optional package"
SYSTEM = "a module that not every system or version has"
# Packages that functions of every module may import, with the reasons.
LATE_ANYWHERE = {
    **dict.fromkeys(("cryptography", "gymnasium", "matplotlib", "mlflow", "optuna", "plotly"), OPTIONAL),
    **dict.fromkeys(("prometheus_client", "safetensors", "tensorboardX", "tqdm", "wandb"), OPTIONAL),
    **dict.fromkeys(("ale_py", "envpool", "minari", "pettingzoo", "ray", "smac"), OPTIONAL),
    **dict.fromkeys(("fcntl", "pwd", "resource", "termios"), SYSTEM),
}
# Other imports in functions, as (module, imported module), with the reasons; docs/decisions/0032 has the figures.
LATE = {
    ("parl._names", "parl_core._migration"): START,  # `import parl` imports each part at its first use
    ("parl._names", "parl_core.backends"): START,
    ("parl._names", "parl_remote.joblib"): START,
    ("parl_core.cli", "parl_core.cli._commands"): OPTIONAL,  # click and gymnasium
    ("parl_evokit.models._find", "parl_evokit.models.paddle_model"): OPTIONAL,
    ("parl_evokit.models._find", "parl_evokit.models.paddle_program"): OPTIONAL,
    ("parl_evokit.models._find", "parl_evokit.models.torch_model"): OPTIONAL,
    ("parl_paddle._static_graphs", "paddle"): SYSTEM,  # private parts of paddle, in two places
    ("parl_remote._actor.journal", "numpy"): START,
    ("parl_remote._actor.journal", "torch"): OPTIONAL,
    ("parl_remote._actor.process", "parl_remote._actor.journal"): NODE,
    ("parl_remote._actor.process", "parl_remote._actor.loop_runner"): NODE,
    ("parl_remote._connect", "parl_remote._debug_client"): START,
    ("parl_remote._connect", "parl_remote._doctor.reach"): START,
    ("parl_remote._connect", "parl_remote._files.upload"): START,  # a quarter of the client's imports
    ("parl_remote._connect", "parl_remote._program.client"): START,
    ("parl_remote._connect", "parl_remote._program.private_cluster"): START,
    ("parl_remote._connect", "parl_remote._program.rendezvous"): START,
    ("parl_remote._connect", "parl_remote._ray.client"): START,
    ("parl_remote._connect", "parl_remote._serving"): START,
    ("parl_remote._data.large_frames", "numpy"): START,
    ("parl_remote._data.tensors", "paddle"): OPTIONAL,
    ("parl_remote._data.tensors", "torch"): OPTIONAL,
    ("parl_remote._future", "asyncio"): START,
    ("parl_remote._node.private_process", "parl_remote._node.private_node"): NODE,
    ("parl_remote._object_ref", "numpy"): START,
    ("parl_remote._portable.processes", "psutil"): START,
    ("parl_remote._program.rendezvous", "parl_remote._transport.zmq"): START,
    ("parl_remote._streams", "asyncio"): START,
    ("parl_remote._transport", "numpy"): NODE,
    ("parl_remote._worker.zygote", "parl_remote._actor.process"): NODE,
    ("parl_remote.cli._monitor", "parl_remote._monitor.server"): OPTIONAL,  # flask and waitress
    ("parl_remote.cli._start", "parl_remote._node.cluster_node"): START,
    ("parl_torch._compiled", "torch"): START,
}

Graph = Mapping[str, Iterable[str]]


class Kind(Enum):
    """The place of an import."""

    MODULE = "module"
    FUNCTION = "function"
    TYPING = "typing"


class Import(NamedTuple):
    """One import by a module of ours."""

    source: str
    target: str
    kind: Kind


class Source(NamedTuple):
    """A module and its file."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def code_lines(self) -> int:
        """Return the number of lines of code without blank lines, comments and docstrings."""
        text = self.path.read_text(encoding="utf-8")
        docstrings: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
                match node.body[0]:
                    case ast.Expr(value=ast.Constant(value=str())) as docstring:
                        docstrings.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines - docstrings)


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Structure:
    """The modules below `packages/*/src` of a checkout, and their imports of each other."""

    def __init__(self, root: Path = ROOT) -> None:
        self.modules: dict[str, Source] = {}
        for folder in sorted(root.glob("packages/*/src")):
            for path in sorted(folder.rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                self.modules[name] = Source(name, path)

    @cached_property
    def imports(self) -> set[Import]:
        found = set()
        for module in self.modules.values():
            for name, kind in _imported(ast.parse(module.path.read_text(encoding="utf-8")), Kind.MODULE):
                target = name if name in self.modules else name.rpartition(".")[0]
                if target in self.modules and target != module.name:
                    found.add(Import(module.name, target, kind))
        return found

    @cached_property
    def late_from_outside(self) -> set[Import]:
        """The imports in functions of packages that are not ours, and of the standard library."""
        found = set()
        for module in self.modules.values():
            for name, kind in _imported(ast.parse(module.path.read_text(encoding="utf-8")), Kind.MODULE):
                target = name.partition(".")[0]
                if kind is Kind.FUNCTION and target not in PACKAGES:
                    found.add(Import(module.name, target, kind))
        return found

    def of(self, package: str) -> list[Source]:
        """Return the modules of a package."""
        return [module for module in self.modules.values() if module.package == package]

    def importers(self) -> dict[str, set[str]]:
        """Return the modules that import each module."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.imports:
            found[one.target].add(one.source)
        return found

    def imported_by_one(self, package: str) -> list[tuple[str, str]]:
        """Return the modules of a package that only one other module imports, with that module."""
        importers = self.importers()
        names = [module.name for module in self.of(package) if not module.is_package]
        return [(name, next(iter(importers[name]))) for name in names if len(importers[name]) == 1]

    def cycles(self, package: str) -> list[list[str]]:
        """Return the groups of modules of a package that import each other, by imports of every kind."""
        return [group for group in components(self.graph(package)) if len(group) > 1]

    def longest_chain(self, package: str) -> list[str]:
        """Return the longest chain of imports of modules within a package; the members of a cycle are one link."""
        graph = self.graph(package, Kind.MODULE)
        chain_from: dict[str, list[str]] = {}
        for group in components(graph):  # imported modules come before their importers
            behind = [chain_from[target] for name in group for target in graph[name] if target not in group]
            chain = [*group, *max(behind, key=len, default=[])]
            chain_from |= dict.fromkeys(group, chain)
        return max(chain_from.values(), key=len, default=[])

    def in_functions(self, package: str) -> list[Import]:
        """Return the imports in functions of a package, of modules of ours and of others."""
        inside = {module.name for module in self.of(package)}
        ours = (one for one in self.imports if one.kind is Kind.FUNCTION)
        return sorted(
            (one for one in (*ours, *self.late_from_outside) if one.source in inside),
            key=lambda one: (one.source, one.target),
        )

    def graph(self, package: str, *kinds: Kind) -> dict[str, set[str]]:
        """Return the imports of each module of a package within the package, of these kinds (default: all)."""
        graph: dict[str, set[str]] = {module.name: set() for module in self.of(package)}
        for one in self.imports:
            if one.source in graph and one.target in graph and (not kinds or one.kind in kinds):
                graph[one.source].add(one.target)
        return graph


def _imported(node: ast.AST, kind: Kind) -> Iterator[tuple[str, Kind]]:
    """Yield the dotted names that a syntax tree imports; `from a import b` yields `a.b`, which need not be a module."""
    match node:
        case ast.Import():
            yield from ((alias.name, kind) for alias in node.names)
        case ast.ImportFrom(module=str(module), level=0):
            yield from ((f"{module}.{alias.name}", kind) for alias in node.names)
        case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
            for guarded in node.body:
                yield from _imported(guarded, Kind.TYPING)
            for other in node.orelse:
                yield from _imported(other, kind)
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name, kind
        case _:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from _imported(child, Kind.FUNCTION if is_function and kind is Kind.MODULE else kind)


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of a graph, each after those that it points to (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in number:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], number[target])
        if lowest[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[-len(group) :]
            found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


class Entered(NamedTuple):
    """The functions of our packages that ran, as (file, qualified name)."""

    functions: set[tuple[str, str]]

    def __str__(self) -> str:
        return f"{len(self.functions)} functions in {len({file for file, _ in self.functions})} files"


def entered(action: Callable[[], object]) -> Entered:
    """Run an action, and return the functions of our packages that it enters in all threads of this process."""
    functions: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/packages/parl-" in code.co_filename and code.co_name != "<module>":
            functions.add((code.co_filename.rpartition("/src/")[2], code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Entered(functions)


_TRIALS = 5


def fewest(trials: Iterable[Entered]) -> Entered:
    """Return the trial with the fewest functions, because waiting on a busy machine enters additional ones."""
    return min(trials, key=lambda trial: len(trial.functions))


def entered_by_actors() -> dict[str, Entered]:
    """Make and call an actor, after another one was made and called."""
    import parl

    @parl.remote_class
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def add(self, k: int) -> int:
            self.n += k
            return self.n

    def call(actor: Counter) -> Entered:
        actor.add(1)
        return entered(lambda: actor.add(1))

    parl.connect(cpu_num=_TRIALS + 1)
    made = [Counter()]
    made[0].add(1)
    making = [entered(lambda: made.append(Counter())) for _ in range(_TRIALS)]
    calling = [call(actor) for actor in made[1:]]
    parl.disconnect()
    return {"making an actor": fewest(making), "one call": fewest(calling)}


def entered_by_learning() -> dict[str, Entered]:
    """Learn from one batch with DQN, after learning from other batches."""
    import numpy as np

    import parl

    class Network(parl.Model):
        def __init__(self) -> None:
            self.hidden = parl.layers.fc(size=32, act="relu")
            self.values = parl.layers.fc(size=2)

        def forward(self, obs: Any) -> Any:
            return self.values(self.hidden(obs))

    agent = parl.Agent(parl.algorithms.DQN(Network(), gamma=0.99, lr=1e-3))
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 64, 4)).astype(np.float32)
    batch = (obs, rng.integers(0, 2, 64), rng.normal(size=64).astype(np.float32), next_obs, np.zeros(64, np.float32))
    for _ in range(5):
        agent.learn(*batch)
    return {"one update of DQN": entered(lambda: agent.learn(*batch))}


ACTIONS = {"remote": entered_by_actors, "learn": entered_by_learning}


def table(structure: Structure) -> str:
    """Return a Markdown table with a row for each package."""
    heads = ["package", "modules", "lines of code", "imported by one other", "longest chain", "cycles", "in functions"]
    rows = [heads, ["---"] * len(heads)]
    for package in PACKAGES:
        modules = structure.of(package)
        cells = (
            len(modules),
            sum(module.code_lines() for module in modules),
            len(structure.imported_by_one(package)),
            len(structure.longest_chain(package)),
            " + ".join(str(len(cycle)) for cycle in structure.cycles(package)) or 0,
            len(structure.in_functions(package)),
        )
        rows.append([package, *map(str, cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def details(structure: Structure) -> Iterator[str]:
    """Yield the details of the table."""
    for package in PACKAGES:
        yield f"\n{package}"
        yield f"  chain: {' > '.join(structure.longest_chain(package))}"
        for cycle in structure.cycles(package):
            yield f"  cycle: {' '.join(cycle)}"
        for name, importer in structure.imported_by_one(package):
            yield f"  imported by one other: {name} <- {importer}"
        for one in structure.in_functions(package):
            yield f"  in a function: {one.source} -> {one.target}, for {_reason(one) or 'no reason'}"


def on_cycles(structure: Structure) -> list[str]:
    """Return a line for each cycle of imports."""
    cycles = [(package, cycle) for package in PACKAGES for cycle in structure.cycles(package)]
    return [f"these modules of {package} import each other: {', '.join(cycle)}" for package, cycle in cycles]


def _reason(late: Import) -> str:
    """Return the reason of an import in a function; empty if it is not allowed."""
    return LATE_ANYWHERE.get(late.target) or LATE.get((late.source, late.target), "")


def without_reason(structure: Structure) -> list[str]:
    """Return a line for each import in a function that no table allows, and for each unused entry of a table."""
    found = [one for package in PACKAGES for one in structure.in_functions(package)]
    nowhere = LATE_ANYWHERE.keys() - {one.target for one in found}
    unused = LATE.keys() - {(one.source, one.target) for one in found}
    return [
        *(f"{one.source} imports {one.target} in a function" for one in found if not _reason(one)),
        *(f"no function imports {name}; remove it from LATE_ANYWHERE" for name in sorted(nowhere)),
        *(f"{source} does not import {target} in functions; remove it from LATE" for source, target in sorted(unused)),
    ]


def above_limits(structure: Structure) -> Iterator[str]:
    """Yield a line for each package that has more modules, or a longer chain of imports, than `LIMITS` allows."""
    for package, (modules, links) in LIMITS.items():
        if (found := len(structure.of(package))) > modules:
            yield f"{package} has {found} modules, of {modules} at most: a module with one importer may go into it"
        if len(chain := structure.longest_chain(package)) > links:
            yield f"{package} has a chain of {len(chain)} imports, of {links} at most: {' > '.join(chain)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--verbose", action="store_true", help="list chains, cycles and functions")
    parser.add_argument("--check", action="store_true", help="fail on cycles, imports in functions and limits")
    parser.add_argument("--entered", choices=ACTIONS, help="run this action and count the functions that it enters")
    options = parser.parse_args()
    if options.entered:
        for action, found in ACTIONS[options.entered]().items():
            print(f"{action}: {found}")
            for file, function in sorted(found.functions) if options.verbose else ():
                print(f"  {file} {function}")
        return 0
    structure = Structure()
    if options.check:
        faults = [*on_cycles(structure), *without_reason(structure), *above_limits(structure)]
        print("\n".join(faults), end="\n" if faults else "")
        return 1 if faults else 0
    print(table(structure))
    if options.verbose:
        print("\n".join(details(structure)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
