"""Which algorithm, layer, distribution, loss, network, optimizer exists in which backend, and which gaps have a reason.

Compared is what programs import; tensors and static programs are each backend's own affair.

    python tools/parity.py    print the matrix; exit 1 when a gap has no reason in GAPS

Names are read from each module's `__all__`, without importing a framework.
"""

import sys

from public_names import ROOT, names_in

BACKENDS = ("torch", "paddle")
COMPARED = ("agent", "algorithm", "algorithms", "distributions", "layers", "losses", "model", "networks", "optim")
# (module, name) -> why one backend has it alone.
GAPS: dict[tuple[str, str], str] = {
    ("distributions", "standard_normal_like"): "draws inside a static graph, too; torch.randn_like is enough there",
    ("layers", "data"): "inputs of a static graph, which only paddle has",
}


def modules(backend: str) -> dict[str, set[str]]:
    source = ROOT / "packages" / f"parl-{backend}" / "src" / f"parl_{backend}"
    found: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[0] in COMPARED and not any(part.startswith("_") and part != "__init__" for part in parts):
            found[".".join(part for part in parts if part != "__init__")] = set(names_in(path))
    return found


def main() -> int:
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
