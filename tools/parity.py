"""Compare algorithms, layers, distributions, losses, networks and optimizers of the backends, with reasons for gaps.

The comparison covers the names that programs import; tensors and static programs belong to each backend.

    python tools/parity.py            print the matrix; exit 1 if a gap has no reason in GAPS
    python tools/parity.py --lines    print the number of lines of code that the backends have in common

Names are read from each module's `__all__`, without importing a framework.
"""

import ast
import difflib
import re
import sys
from pathlib import Path

from public_names import ROOT, is_public, names_in

BACKENDS = ("torch", "paddle")
COMPARED = ("agent", "algorithm", "algorithms", "distributions", "layers", "losses", "model", "networks", "optim")
# The reasons for names that only one backend has, by (module, name).
GAPS: dict[tuple[str, str], str] = {
    ("distributions", "log_softmax"): "paddle's own ends at -64 on the CPU; torch.log_softmax is enough there",
    ("distributions", "standard_normal_like"): "draws inside a static graph, too; torch.randn_like is enough there",
    ("layers", "data"): "inputs of a static graph, which only paddle has",
    ("optim", "accessor_of_optimizer"): "paddle saves states by names of parameters, and no rate; PyTorch by places",
}


def files(backend: str) -> dict[str, Path]:
    source = ROOT / "packages" / f"parl-{backend}" / "src" / f"parl_{backend}"
    return {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*.py"))}


def modules(backend: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for relative, path in files(backend).items():
        parts = Path(relative).with_suffix("").parts
        if parts[0] in COMPARED and is_public(parts):
            found[".".join(part for part in parts if part != "__init__")] = set(names_in(path))
    return found


def code(path: Path) -> list[str]:
    """Return lines of code without indentation, comments and docstrings; frameworks are named `framework`."""
    text = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    stripped = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    return [re.sub("paddle|torch", "framework", line) for line in stripped if line and not line.startswith("#")]


def print_lines() -> None:
    """Print the lines of code, and the number that both backends have in the same order in files of the same name."""
    trees = {backend: {name: code(path) for name, path in files(backend).items()} for backend in BACKENDS}
    torch, paddle = (trees[backend] for backend in BACKENDS)
    sizes = {backend: sum(map(len, tree.values())) for backend, tree in trees.items()}
    equal = 0
    for name in torch.keys() & paddle.keys():
        blocks = difflib.SequenceMatcher(None, torch[name], paddle[name], autojunk=False).get_matching_blocks()
        equal += sum(block.size for block in blocks)
    print("\n".join(f"parl_{backend}: {size} lines of code" for backend, size in sizes.items()))
    print(f"equal after renaming: {equal}, {equal / sizes['torch']:.1%} of parl_torch's")


def main() -> int:
    if "--lines" in sys.argv[1:]:
        print_lines()
        return 0
    offered = {backend: modules(backend) for backend in BACKENDS}
    rows = sorted({(module, name) for one in offered.values() for module, names in one.items() for name in names})
    missing = 0
    print("| module | name | torch | paddle | reason |\n| --- | --- | --- | --- | --- |")
    for module, name in rows:
        has = [name in offered[backend].get(module, set()) for backend in BACKENDS]
        reason = GAPS.get((module, name), "")
        missing += not all(has) and not reason
        cells = ["yes" if one else "**no**" for one in has]
        print("| " + " | ".join([module or "parl_<backend>", name, *cells, reason]) + " |")
    if missing:
        print(f"\n{missing} gaps without a reason; fill them or record the reason in GAPS of tools/parity.py")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
