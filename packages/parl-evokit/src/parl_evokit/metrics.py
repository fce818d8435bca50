"""Metrics of updates for Prometheus, and a page of plots from a model's history.

    history.jsonl ─┬─► exposition: text for a node exporter's folder, or `Metrics` in a process with prometheus_client
                   └─► page: one HTML file, drawn without any library

Set up an alarm for stopped updates first: `evokit_last_update_timestamp_seconds` is the time at which the newest model
was written.
"""

import html
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parl_evokit._directories import read_unchanged
from parl_evokit._report import UpdateReport
from parl_evokit._solver_dir import SUMMARY, read_history, read_summary, totals_of
from parl_evokit.errors import EvolutionError, SolverError
from parl_evokit.log import LogContents

__all__ = ["Metrics", "exposition", "last_update", "page"]

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 180, 60, 24
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#7f7f7f")
HELP = {
    "model_iter_id": "Number of the newest model.",
    "last_update_timestamp_seconds": "When the newest model was written.",
    "used_samples": "Samples of the last update.",
    "effective_samples": "How many samples of equal weight these are worth.",
    "step_length": "Euclidean length of the last step.",
    "mean_reward": "Mean reward of the last update, by arm: noise, control, holdout.",
    "stale_samples": "Samples of older models in the last update, by age.",
    "waiting_samples": "Samples that were served and have no reward yet.",
    "set_aside_total": "Samples that were not used, by reason.",
    "refused_tokens_total": "Rejected tokens, by reason.",
    "timed_out_total": "Samples that count without their own reward.",
    "rollbacks_total": "Updates that went back to the trusted model.",
    "quarantined_segments_total": "Segments that were moved aside.",
}
COUNTERS = {name for name in HELP if name.endswith("_total")}
SERIES = {
    "set_aside": "set_aside_total",
    "refused": "refused_tokens_total",
    "timed_out": "timed_out_total",
    "rollbacks": "rollbacks_total",
    "quarantined": "quarantined_segments_total",
}
LABELS = {"set_aside": "reason", "refused": "reason"}


def last_update(model_dir: Path) -> float:
    """Return the time at which a model was written, in seconds since 1970 (UTC).

    Raises:
        SolverError: There is no solver.
    """
    try:
        return (model_dir / SUMMARY).stat().st_mtime
    except OSError as error:
        raise SolverError(f"{model_dir} contains no solver: {error}") from error


def _history(model_dir: Path) -> tuple[list[dict[str, Any]], float]:
    """Return the updates of a model, and the time at which it was written, both of one version of its directory."""

    def read() -> tuple[list[dict[str, Any]], float]:
        written = last_update(model_dir)
        return [json.loads(line) for line in read_history(model_dir, read_summary(model_dir))], written

    return read_unchanged(model_dir, read)


def _values(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return all metrics of a history: {name: {label: value}}, the label being empty or `key="value"`."""
    found: dict[str, dict[str, float]] = {name: {} for name in HELP}
    for name, sums in totals_of(lines).items():
        label, series = LABELS.get(name, ""), found[SERIES[name]]
        series.update({f'{label}="{each}"' if label else "": total for each, total in sums.items()})
    if lines:
        last = lines[-1]
        found["model_iter_id"][""] = last["model_iter_id"]
        found["used_samples"][""] = last["used"]
        found["effective_samples"][""] = last.get("effective", last["used"])
        found["step_length"][""] = last["update_norm"]
        found["stale_samples"] = {f'age="{age}"': count for age, count in last["stale"].items()}
        arms = {"noise": last["mean_reward"], "control": last["control_mean"], "holdout": last.get("holdout_mean")}
        found["mean_reward"] = {f'arm="{arm}"': mean for arm, mean in arms.items() if mean is not None}
    return found


def exposition(model_dir: Path) -> str:
    """Return the metrics of a model's history in the text format of Prometheus.

    Raises:
        SolverError: There is no solver, or it or its history is damaged.
    """
    lines, written = _history(model_dir)
    found = _values(lines)
    found["last_update_timestamp_seconds"][""] = written
    out = []
    for name, series in found.items():
        if series:
            kind = "counter" if name in COUNTERS else "gauge"
            out += [f"# HELP evokit_{name} {HELP[name]}", f"# TYPE evokit_{name} {kind}"]
            out += [f"evokit_{name}{{{label}}} {value:.17g}" if label else f"evokit_{name} {value:.17g}"
                    for label, value in series.items()]  # fmt: skip
    return "\n".join(out) + "\n"


class Metrics:
    """The metrics in a process that updates, for `prometheus_client` (the extra `metrics`).

    Args:
        registry: Registry of prometheus_client. Default: its global registry.

    Raises:
        EvolutionError: prometheus_client is not installed, or the registry has the metrics of another object.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise EvolutionError("metrics need prometheus_client: pip install parl-evokit[metrics]") from error
        registry = registry or prometheus_client.REGISTRY
        labels = {
            "mean_reward": ["arm"], "stale_samples": ["age"], "set_aside_total": ["reason"],
            "refused_tokens_total": ["reason"],
        }  # fmt: skip
        try:
            self._series: dict[str, Any] = {
                name: (prometheus_client.Counter if name in COUNTERS else prometheus_client.Gauge)(
                    f"evokit_{name}", text, labels.get(name, []), registry=registry
                )
                for name, text in HELP.items()
            }
        except ValueError as error:
            raise EvolutionError(
                "this registry has the metrics of another Metrics object: use that one, or a registry for each model, "
                f"Metrics(prometheus_client.CollectorRegistry()) ({error})"
            ) from error

    def observe(self, report: UpdateReport, contents: LogContents | None = None) -> None:
        """Set the metrics from the result of `update_from_log`."""
        line = {**vars(report), "set_aside": vars(report.set_aside)}
        for name, series in _values([line]).items():
            metric = self._series[name]
            if name in {"mean_reward", "stale_samples"}:  # of this update only: an arm or an age may have no samples
                metric.clear()
            for label, value in series.items():
                one = metric.labels(label.split('"')[1]) if label else metric
                one.inc(value) if name in COUNTERS else one.set(value)
        self._series["last_update_timestamp_seconds"].set_to_current_time()
        if contents is not None:
            self._series["waiting_samples"].set(contents.pending)


def page(model_dir: Path, now: float, stale_after_s: float) -> str:
    """Return a page of plots as one HTML file.

    Args:
        model_dir: Directory of the newest model.
        now: The present time in seconds since 1970 (UTC).
        stale_after_s: Age of the last update above which the page begins with an alarm, in seconds.

    Raises:
        SolverError: There is no solver, or it or its history is damaged.
    """
    lines, last = _history(model_dir)
    since = now - last
    newest = "the newest " if lines and lines[0].get("previous") else ""  # earlier lines are not kept
    ages = [str(age) for age in sorted({int(age) for line in lines for age in line["stale"]})]
    reasons = sorted({reason for line in lines for reason in line.get("refused", {})})
    aside = sorted({reason for line in lines for reason, count in line["set_aside"].items() if count})
    plots = [
        _plot("reward by arm", lines, {"noise": "mean_reward", "control": "control_mean", "holdout": "holdout_mean"}),
        _plot("samples", lines, {"used": "used", "effective": "effective", "timed out": "timed_out"}),
        _plot("length of the step", lines, {"step": "update_norm", "gradient": "gradient_norm"}),
        _plot("samples of older models, by age in updates", _deeper(lines, "stale", ages), _same(ages)),
        _plot("refused tokens", _deeper(lines, "refused", reasons), _same(reasons)),
        _plot("set aside", _deeper(lines, "set_aside", aside), _same(aside)),
    ]
    stopped = (
        f'<p class="alarm">The updates have stopped: the last one was {since / 3600:.1f} hours before this page.</p>'
    )
    rollbacks = [f"<li>model {line['model_iter_id']}: {html.escape(line['rolled_back'])}</li>"
                 for line in lines if line.get("rolled_back")]  # fmt: skip
    return (
        "<!doctype html><meta charset=utf-8><title>evokit</title><style>body{font:14px sans-serif;margin:2em}"
        ".alarm{background:#d62728;color:#fff;padding:.6em}svg{display:block}</style>"
        f"<h1>{html.escape(str(model_dir))}</h1>{stopped if since > stale_after_s else ''}"
        f"<p>{newest}{len(lines)} updates; the last one at {_utc(last)}, {since / 3600:.1f} hours before this page "
        f"({_utc(now)}).</p>{''.join(plots)}"
        f"<h2>rollbacks</h2><ul>{''.join(rollbacks) or '<li>none</li>'}</ul>\n"
    )


def _utc(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def _deeper(lines: Sequence[Mapping[str, Any]], field: str, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"model_iter_id": line["model_iter_id"]} | {name: line.get(field, {}).get(name, 0) for name in names}
        for line in lines
    ]


def _same(names: Sequence[str]) -> dict[str, str]:
    return {name: name for name in names}


def _plot(title: str, lines: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> str:
    """Return an SVG of numbers over models, with gaps for missing numbers."""
    series = {
        name: [(line["model_iter_id"], line[field]) for line in lines if line.get(field) is not None]
        for name, field in fields.items()
    }
    points = [point for some in series.values() for point in some]
    if not points:
        return f"<h2>{html.escape(title)}</h2><p>none</p>"
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    across, up = max(1, last - first), (high - low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        right, down = (x - first) / across, (high - y) / up
        return round(LEFT + right * (WIDTH - LEFT - 10), 1), round(10 + down * (HEIGHT - BOTTOM - 10), 1)

    drawn = ""
    for some, colour in zip(series.values(), COLOURS * len(series), strict=False):
        spots = [place(x, y) for x, y in some]
        way = " ".join(f"{x},{y}" for x, y in spots)
        drawn += f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{way}"/>'
        if len(spots) == 1:
            drawn += f'<circle cx="{spots[0][0]}" cy="{spots[0][1]}" r="3" fill="{colour}"/>'
    names = " ".join(
        f'<tspan fill="{colour}">{html.escape(name)}</tspan>'
        for name, colour in zip(series, COLOURS * len(series), strict=False)
    )
    return (
        f'<h2>{html.escape(title)}</h2><svg width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'<text x="4" y="16">{high:.4g}</text><text x="4" y="{HEIGHT - BOTTOM}">{low:.4g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">model {first}</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 6}" text-anchor="end">{last}</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{names}</text>{drawn}</svg>'
    )
