"""`parl plot`, `parl list` and `parl verify`: runs, presets and results."""

import json
from pathlib import Path
from typing import Any

import click
import gymnasium

from parl_core import backends
from parl_core.cli._request import columns
from parl_core.training.comparison import Comparison, draw_comparison, write_page
from parl_core.training.recipes import RECIPES, read_scores
from parl_core.training.results import verify

__all__ = ["list_parts", "plot", "verify_result"]


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", default="curves.png", type=click.Path(path_type=Path), help="FILE.png, .svg, .pdf, or .html."
)
@click.option("--group", is_flag=True, help="Single runs that differ by their seed alone become one curve with a band.")
@click.option("--title", default="", help="Title of the picture.")
@click.option("--goal", type=float, help="Draw a line at this return.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def plot(runs: tuple[Path, ...], output: Path, *, group: bool, title: str, goal: float | None, as_json: bool) -> None:
    """Draw the learning curves of runs and of groups of runs, and print them as a table.

    RUN is the folder of a run, or one that holds the runs of a group, such as that of `parl train --seeds`. A file
    that ends in .html shows values at the mouse pointer, and needs no network.
    """
    found = Comparison.read(runs, by_settings=group)
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".html":
        write_page(found, output, title, goal)
    else:
        draw_comparison(found, output, title, goal)
    if as_json:
        click.echo(json.dumps({"path": str(output), "runs": found.rows()}))
    else:
        click.echo(found.table())
        click.echo(str(output))


@click.command("list")
@click.option("--runs", type=click.Path(path_type=Path), help="List the runs in this folder instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_parts(runs: Path | None, *, as_json: bool) -> None:
    """List what is installed and the presets of `parl train`; or with --runs what was trained."""
    if runs is not None:
        folders = sorted(path for path in runs.iterdir() if path.is_dir())
        found = Comparison.read([path for path in folders if _is_run(path)])
        click.echo(json.dumps(found.rows()) if as_json else found.table())
        return
    installed = {name: list(backends.load(name).algorithms.__all__) for name in backends.installed()}
    scores = read_scores()
    presets: list[dict[str, Any]] = []
    for (algorithm, env), recipe in RECIPES.items():
        if env == "*" or env in gymnasium.registry or any(mark in env for mark in "/-"):
            told = {"steps": recipe.steps, "goal": recipe.goal, "source": recipe.source}
            presets.append({"algorithm": algorithm.lower(), "env": env, **told, "score": scores.get((algorithm, env))})
    if as_json:
        click.echo(json.dumps({"backends": installed, "presets": presets}))
        return
    for name, algorithms in installed.items():
        click.echo(f"backend {name}: {', '.join(algorithms)}")
    if not installed:
        click.echo("no backend is installed; choose one: pip install parl-torch, pip install parl-paddle")
    lines = [("parl train …", "steps", "goal", "reached here (seeds)", "source")]
    for one in presets:
        goal, score = one["goal"], one["score"]
        reached = "not measured"
        if score is not None:
            reached = f"{score['mean']:g} [{score['low']:g}, {score['high']:g}] ({score['seeds']})"
        name = f"recipe {one['algorithm']} {one['env']}"
        lines.append((name, str(one["steps"]), "-" if goal is None else f"{goal:g}", reached, one["source"]))
    click.echo(columns(lines))
    click.echo(
        "Reached: the interquartile mean of returns after training over seeds on torch, and its 95 % interval; the "
        "runs are in benchmarks/learning/results."
    )
    click.echo("Other environments get settings by their kind; `parl settings ALGORITHM ENV` shows them.")


def _is_run(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in ("metrics.jsonl", "*/metrics.jsonl"))


@click.command("verify")
@click.argument("result", type=click.Path(path_type=Path))
def verify_result(result: Path) -> None:
    """Repeat the runs of RESULT from their own record and report whether they lie inside its interval.

    RESULT is the file of one run (results/dqn-cartpole/torch-100.json), which is compared with the range of all runs of
    its row, or a row (results/dqn-cartpole/torch), whose interval is that of its interquartile mean. The exit status
    is 1 if the repetition lies outside.
    """

    def told(run: str, share: float) -> None:
        click.echo(f"{run}: {share:.0%}", err=True)

    found = verify(result, progress=told)
    click.echo(str(found))
    if not found.inside:
        raise SystemExit(1)
