"""The public names of all packages, one line each, so that a new or lost name is visible in a diff.

    python tools/public_names.py          compare with docs/reference/public_names.txt; exit 1 on a difference
    python tools/public_names.py --write  write that file anew

A public name is an entry of a module's `__all__`, read from the source without importing anything.
"""

import ast
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "reference" / "public_names.txt"


def names_in(path: Path) -> list[str]:
    for node in ast.parse(path.read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets) and node.value:
            return sorted(ast.literal_eval(node.value)) if isinstance(node.value, ast.List | ast.Tuple) else []
    return []


def listing() -> list[str]:
    lines = []
    for source in sorted(ROOT.glob("packages/*/src")):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            if any(part.startswith("_") and part != "__init__" for part in parts):
                continue
            module = ".".join(part for part in parts if part != "__init__")
            lines += [f"{module}.{name}" for name in names_in(path)]
    return lines


def main() -> int:
    found = listing()
    if "--write" in sys.argv[1:]:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text("\n".join(found) + "\n")
        return 0
    recorded = RECORD.read_text().splitlines() if RECORD.exists() else []
    difference = list(difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=0))
    if difference:
        print("\n".join(difference))
        print(
            f"public names changed; if that is meant: python tools/public_names.py --write ({RECORD.relative_to(ROOT)})"
        )
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
