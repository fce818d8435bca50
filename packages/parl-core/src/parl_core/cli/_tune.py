"""`parl tune`: a search for settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from parl_core.cli._request import FILE, SEED, WHAT, asked_by, options, pairs
from parl_core.training.settings import as_text
from parl_core.training.tuning import default_ranges, read_range, tune

__all__ = ["tune_settings"]


@click.command("tune")
@WHAT
@options(
    click.option("--trials", default=20, type=click.IntRange(1), help="How many more."),
    click.option("--workers", type=click.IntRange(1), help="Trials at the same time; default: the cores."),
    click.option("--cluster", default="", help="host:port of a running cluster for the trials."),
    click.option(
        "--search",
        metavar="NAME=RANGE",
        multiple=True,
        callback=pairs,
        help="lr=1e-5..1e-2, or network.width=64|128; may be repeated. Default: learning rates, discount, batches.",
    ),
    click.option("--no-prune", is_flag=True, help="Let bad trials go on to their end."),
    click.option("--study", type=FILE, help="Folder of the search; one that is there goes on. Default: in runs/."),
    click.option("--seed", type=SEED, help="Of every trial, and of the search; default 0."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else."),
)
def tune_settings(
    *,
    trials: int,
    workers: int | None,
    cluster: str,
    search: Mapping[str, str],
    no_prune: bool,
    study: Path | None,
    as_json: bool,
    **what: Any,
) -> None:
    """Search for better settings of ALGORITHM on ENV with Optuna, and write the best as a file for --config.

    \b
    parl tune ppo CartPole-v1 --steps 20000 --trials 30 --search lr=1e-4..1e-2 --search "n_steps=32|128|512"
    parl train --config runs/tune-ppo-CartPole-v1/best.toml
    """  # noqa: D301 - click's mark of a paragraph that keeps its lines
    asked = asked_by(**what)
    ranges = {name: read_range(text) for name, text in search.items()} or default_ranges(asked.algorithm, asked)
    folder = study or Path("runs") / f"tune-{asked.algorithm.lower()}-{asked.env.replace('/', '-').replace(':', '-')}"

    def told(line: str) -> None:
        if not as_json:
            click.echo(line)

    found = tune(asked, folder, ranges, trials, workers=workers, cluster=cluster, prune=not no_prune, told=told)
    if as_json:
        counts = {"trials": found.trials, "pruned": found.pruned, "failed": found.failed}
        click.echo(json.dumps({**counts, "best": dict(found.best), "score": found.value, "file": str(found.file)}))
        return
    best = ", ".join(f"{name}={as_text(value)}" for name, value in found.best.items())
    click.echo(f"{found.trials} trials, {found.pruned} pruned, {found.failed} failed; best {found.value:.2f}: {best}")
    click.echo(f"parl train --config {found.file}")
