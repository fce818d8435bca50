"""Tables of all results: verdicts, runs, and published results of others."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from curves import draw
from gates import GATES
from one_run import has_numbers_of

from parl_core.stats import bootstrap_difference, bootstrap_interval, interquartile_mean
from parl_core.training.recipes import EpisodeSettings
from parl_core.training.results import REPORT_SEEDS, read_result

__all__ = ["SCORES", "Result", "Row", "read", "reported", "scores", "verdict", "write"]

Row = tuple[str, str]  # gate, backend
Rows = dict[Row, list[dict[str, Any]]]
Result = dict[str, Any]
BACKENDS = ("torch", "paddle")
RESULTS = Path(__file__).resolve().parent / "results"
SCORES = RESULTS.parents[2] / "packages/parl-core/src/parl_core/training/scores.json"
"""File with the scores of the presets, which `parl list` shows."""
PEER = "sb3"

_PROTOCOL = """\
Returns are measured with the weights at the end of training, over 100 episodes with the deterministic policy, on seeds
that neither training nor its evaluations used; no best checkpoint is selected. Recipes were tuned on seeds below 100. A
row uses the seeds 100, 101, 102, ..., each once: ten on torch and five on paddle if a run takes less than 15 CPU
minutes, five and two below two hours, three on torch above. The row shows the interquartile mean over seeds of these
mean returns and its 95 % bootstrap interval. A gate is passed if the interval's lower bound reaches it. "Not below" and
"above" another row are one-sided tests at 95 % on the difference of both interquartile means; the table shows its
interval and margin. Every result names a clean commit; `parl verify RESULT` repeats it. `README.md` describes the
protocol."""

_EARLIER = """\
Seeds 0 to 4, on some of which recipes had been tuned, and runs of recipes that have other numbers or other logged data
by now: not evidence for the rows above, which have none of it."""

_BESIDE = """\
The same numbers in Stable-Baselines3 (`beside_sb3.py` translates a recipe), with the same seeds and the same
evaluation."""


def write(folder: Path) -> str:
    """Write `TABLE.md` and `curves.png` into the folder of the results, and return the former."""
    found = read(folder)
    rows, earlier, left_out = reported(found)
    peers = {row: rows.pop(row) for row in list(rows) if row[1] == PEER}
    parts = [_PROTOCOL, _cost(), _summary(rows), _verdicts(rows)]
    if peers:
        parts += ["## Beside Stable-Baselines3", _BESIDE, _beside(rows, peers)]
    parts += ["## Runs", _runs({**rows, **peers}), "## What others report", _others(rows)]
    if earlier:
        parts += ["## Earlier results", _EARLIER, _runs(earlier)]
    if left_out:
        parts.append(f"Not shown, because their commit is not known or was not clean: {left_out} results.")
    text = "\n\n".join(parts)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "TABLE.part.md"
    partial.write_text(text + "\n")
    partial.replace(folder / "TABLE.md")
    if folder.resolve() == RESULTS:
        SCORES.write_text(json.dumps(scores(rows), indent=1) + "\n")
    if rows:
        draw(rows, folder / "curves.png")
    return text


def scores(rows: Rows) -> dict[str, dict[str, Any]]:
    """Return the scores that `parl list` shows: for each preset, the complete row of its settings on torch.

    Rows of variants, with another number of steps than the preset's, or with a part of the seeds are left out.
    """
    found = {}
    for (key, backend), results in rows.items():
        gate = GATES[key]
        all_there = {one["seed"] for one in results} >= set(gate.seeds(backend))
        # `parl train` has no loop over episodes, and its network and game differ from those of these MinAtar recipes.
        is_preset = not gate.recipe.environment and not isinstance(gate.recipe.loop, EpisodeSettings)
        if backend != "torch" or gate.variant or gate.steps is not None or not all_there or not is_preset:
            continue
        low, high = bootstrap_interval(_means(results))
        found[f"{gate.algorithm} {gate.env}"] = {
            "mean": round(float(interquartile_mean(_means(results))), 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "seeds": len(results),
            "steps": gate.recipe.steps,
            "source": f"benchmarks/learning/results/{key}/{backend}-*.json",
        }
    return found


def read(folder: Path) -> Rows:
    """Return all results by gate and backend, in the order of the gates and seeds; report and skip invalid files."""
    found: Rows = defaultdict(list)
    for path in sorted(folder.glob("*/*.json")):
        try:
            result = read_result(path)
        except ValueError as error:
            print(f"{error}; the table omits it", file=sys.stderr, flush=True)
            continue
        if result["gate"] in GATES:
            found[result["gate"], result["backend"]].append(result)
    order = list(GATES)
    rows = sorted(found, key=lambda row: (order.index(row[0]), (*BACKENDS, PEER).index(row[1])))
    return {row: sorted(found[row], key=lambda result: result["seed"]) for row in rows}


def reported(found: Rows) -> tuple[Rows, Rows, int]:
    """Return the results of rows, those with earlier seeds or settings, and the number of hidden results."""
    rows: Rows = defaultdict(list)
    earlier: Rows = defaultdict(list)
    left_out = 0
    for row, results in found.items():
        for result in results:
            if not _is_clean(result):
                left_out += 1
            elif result["seed"] in REPORT_SEEDS and has_numbers_of(result, GATES[row[0]]):
                rows[row].append(result)
            else:
                earlier[row].append(result)
    return dict(rows), dict(earlier), left_out


def verdict(row: Row, rows: Rows) -> str:
    """Return the verdict on a gate, with its criterion."""
    gate = GATES[row[0]]
    steps, wanted = {result["steps"] for result in rows[row]}, gate.recipe.steps
    if min(steps) < wanted or max(steps) > 1.1 * wanted:  # on-policy loops complete their last rollout
        return f"open (runs of {_list(f'{step:,}' for step in sorted(steps))} steps, the gate has {wanted:,})"
    other = gate.not_below or gate.above
    if other:
        theirs = rows.get((other, row[1]))
        if theirs is None:
            return f"open ({other} has not run)"
        low, high = bootstrap_difference(_means(rows[row]), _means(theirs), confidence=0.9)
        passed = low >= -gate.margin if gate.not_below else low > 0.0
        test = f"not below {other} by more than {gate.margin:g}" if gate.not_below else f"above {other}"
        return f"{'passed' if passed else 'FAILED'} ({test}: difference [{low:.1f}, {high:.1f}])"
    if gate.threshold is None:
        return "reported only"
    low = bootstrap_interval(_means(rows[row])).low
    return f"{'passed' if low >= gate.threshold else 'FAILED'} (>= {gate.threshold:g})"


def _is_clean(result: Result) -> bool:
    commit = result.get("commit")
    return bool(commit) and not str(commit).endswith("-dirty")


def _summary(rows: Rows) -> str:
    by_word: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_word[verdict(row, rows).split(" (")[0]].append(f"{_task(row[0])} on {row[1]}")
    never = [_task(key) for key in GATES if not any(row[0] == key for row in rows)]
    lines = [f"- passed: {len(by_word['passed'])} of {len(rows)} rows"]
    lines += [f"- {word}: {'; '.join(by_word[word])}" for word in ("FAILED", "open", "reported only") if by_word[word]]
    if never:
        lines.append(f"- not run: {'; '.join(never)}")
    return "\n".join(lines)


def _cost() -> str:
    hours = {
        backend: sum(len(gate.seeds(backend)) * gate.minutes for gate in GATES.values()) / 60 for backend in BACKENDS
    }
    return (
        f"All rows with all their seeds take about {hours['torch']:.0f} CPU hours on torch; paddle's take "
        f"{hours['paddle']:.0f} hours times what an update there takes longer, two to three times."
    )


def _beside(rows: Rows, peers: Rows) -> str:
    lines = []
    for (key, _), theirs in peers.items():
        ours = rows.get((key, "torch"))
        difference = "-"
        if ours:
            low, high = bootstrap_difference(_means(ours), _means(theirs))
            difference = f"[{low:.1f}, {high:.1f}]"
        cells = [f"{_figure(ours)} ({len(ours)})" if ours else "-", f"{_figure(theirs)} ({len(theirs)})"]
        lines.append([_task(key), *cells, difference])
    return _table(["algorithm, task", "ours on torch (seeds)", "Stable-Baselines3 (seeds)", "difference [95 %]"], lines)


def _verdicts(rows: Rows) -> str:
    lines = []
    for key in _gates(rows):
        cells = [_task(key)]
        for backend in BACKENDS:
            results = rows.get((key, backend))
            cells += [_figure(results), _so_far(key, backend, rows)] if results else ["-", "-"]
        lines.append([*cells, "; ".join((*GATES[key].deviations, *GATES[key].recipe.deviations)) or "none known"])
    head = ["algorithm, task", *(f"{backend}{what}" for backend in BACKENDS for what in (": IQM [95 %]", ": gate"))]
    return _table([*head, "deviations"], lines)


def _runs(rows: Rows) -> str:
    head = ["algorithm, task", "backend", "steps", "seeds", "mean return of each", "wall, CPU (s, median)", "commits"]
    lines = []
    for (key, backend), results in rows.items():
        times = (f"{np.median([result[kind] for result in results]):.0f}" for kind in ("wall_s", "cpu_s"))
        steps = sorted({result["steps"] for result in results})
        commits = sorted({str(result.get("commit")) for result in results})
        cells = [_task(key), backend, _list(f"{step:,}" for step in steps), _list(str(one["seed"]) for one in results)]
        lines.append([*cells, _list(f"{mean:.1f}" for mean in _means(results)), _list(times), _list(commits)])
    return _table(head, lines)


def _others(rows: Rows) -> str:
    lines = []
    for key in _gates(rows):
        gate = GATES[key]
        data = {
            f"{result['data_return']:.1f}"
            for row, found in rows.items()
            if row[0] == key
            for result in found
            if "data_return" in result
        }
        published = [*gate.published, *(f"the logged data: {value}" for value in sorted(data))]
        lines.append([_task(key), "; ".join(published) or "-", gate.recipe.source])
    return _table(["algorithm, task", "published", "hyper-parameters from"], lines)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def _gates(rows: Rows) -> list[str]:
    return list(dict.fromkeys(key for key, _ in rows))


def _task(key: str) -> str:
    return GATES[key].title


def _figure(results: list[Result]) -> str:
    means = _means(results)
    low, high = bootstrap_interval(means)
    return f"{float(interquartile_mean(means)):.1f} [{low:.1f}, {high:.1f}]"


def _so_far(key: str, backend: str, rows: Rows) -> str:
    seeds, wanted = len(rows[key, backend]), len(GATES[key].seeds(backend))
    return verdict((key, backend), rows) + ("" if seeds >= wanted else f", with {seeds} of {wanted} seeds")


def _means(results: list[Result]) -> list[float]:
    return [float(np.mean(result["returns"])) for result in results]


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
