"""Medians as a Markdown table."""

import math
from collections.abc import Mapping, Sequence

from rows import ROWS

_NAMES = {"parl": "parl", "ray": "Ray", "pipe": "pipe", "zmq": "zmq", "parl221": "PARL 2.2.1", "dask": "Dask"}


def render(
    peers: Sequence[str],
    medians: Mapping[str, Mapping[str, float]],
    conditions: Sequence[str],
    reasons: Mapping[tuple[str, str], str],
) -> str:
    """Return the document.

    Args:
        peers: The columns in order.
        medians: Values by row and peer.
        conditions: Lines about the machine and the run.
        reasons: Reasons of failures by (peer, measurement).
    """
    heads = ["what", "unit", *(_NAMES[peer] for peer in peers), "parl / pipe", "better than Ray, times", "target", ""]
    lines = ["# Remote actors: results", "", *(f"- {line}" for line in conditions), ""]
    lines += [_line(heads), _line(["---"] * len(heads))]
    missed = 0
    for row in ROWS:
        values = medians.get(row.key)
        if not values:
            continue
        met = row.is_met(values)
        missed += met is False
        ours = values.get("parl")
        over_pipe = _number(ours / values["pipe"]) if ours is not None and values.get("pipe") else "-"
        over_ray = _number(row.gain(ours, values["ray"])) if ours is not None and "ray" in values else "-"
        cells = [_number(values[peer]) if peer in values else "-" for peer in peers]
        verdict = {True: "met", False: "**missed**", None: ""}[met]
        lines.append(_line([row.text, row.unit, *cells, over_pipe, over_ray, row.aim(), verdict]))
    lines += ["", f"Targets missed: {missed}.", ""]
    lines += [f"- {_NAMES.get(peer, peer)}, {name}: {reason}" for (peer, name), reason in sorted(reasons.items())]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"
