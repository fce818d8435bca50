"""`parl evaluate` and `parl play`: what trained agents do."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import gymnasium

from parl_core import backends
from parl_core.cli._request import SEED
from parl_core.training.recipe_run import check_rendering, play
from parl_core.training.trained import Trained

__all__ = ["evaluate_run", "play_run"]

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("evaluate")
@click.argument("run", type=_FOLDER)
@click.option("--episodes", default=100, type=click.IntRange(1), help="How many to play.")
@click.option("--seed", default=0, type=SEED, help="Of the episodes.")
@click.option("--max-steps", default=100_000, type=click.IntRange(1), help="Of one episode; then it is cut.")
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="The agent as it was at the end (or the last evaluation), not the best one.")
@click.option("--stochastic", is_flag=True, help="Actions are drawn as in training; default: the best ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every episode's return.")
def evaluate_run(
    run: Path, episodes: int, seed: int, backend: str | None, *, last: bool, as_json: bool, **how: Any
) -> None:
    """Play episodes with the best agent of the folder RUN, and print their mean return."""
    trained = Trained.read(run)
    backends.set_backend(backend or trained.backend)
    agent, make_env = trained.load(run / (trained.LAST if last else trained.FILE))
    result = play(agent, trained, episodes, seed=seed, make_env=make_env, **how)
    if as_json:
        found = {"env": trained.env, "mean": result.mean, "deviation": result.std, "returns": result.returns}
        click.echo(json.dumps({**found, "lengths": [one.length for one in result.episodes]}))
    else:
        click.echo(f"{trained.env}: mean return {result.mean:.2f}, deviation {result.std:.2f}, {episodes} episodes")


@click.command("play")
@click.argument("run", type=_FOLDER)
@click.option("--video", type=click.Path(path_type=Path), help="Write FILE.mp4 in place of opening a window.")
@click.option("--episodes", default=1, type=click.IntRange(1), help="How many to play; each has a video of its own.")
@click.option("--seed", default=0, type=SEED, help="Of the episodes.")
@click.option("--max-steps", default=100_000, type=click.IntRange(1), help="Of one episode; then it is cut.")
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="The agent as it was at the end, not the best one.")
@click.option("--stochastic", is_flag=True, help="Actions are drawn as in training; default: the best ones.")
def play_run(
    run: Path, video: Path | None, episodes: int, seed: int, backend: str | None, *, last: bool, **how: Any
) -> None:
    """Show the agent of the folder RUN in a window, or write a video of it."""
    trained = Trained.read(run)
    mode = "human" if video is None else "rgb_array"
    check_rendering(trained, mode)  # before a framework is loaded
    backends.set_backend(backend or trained.backend)
    agent, make_env = trained.load(run / (trained.LAST if last else trained.FILE), mode)
    for number in range(episodes):
        if video is None:
            result = play(agent, trained, 1, seed=seed + number, make_env=make_env, **how)
        else:
            target = video if episodes == 1 else video.with_stem(f"{video.stem}-{number}")
            result = _record(target, agent, trained, make_env, seed + number, how)
            click.echo(str(target))
        click.echo(f"return {result.mean:.2f}, {result.episodes[0].length} steps")


def _record(target: Path, agent: Any, trained: Trained, make_env: Any, seed: int, how: Any) -> Any:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # the recorder chooses its files' names

        def recorded() -> Any:
            return gymnasium.wrappers.RecordVideo(make_env(), folder, episode_trigger=lambda _: True)

        result = play(agent, trained, 1, seed=seed, make_env=recorded, **how)
        (made,) = Path(folder).glob("*.mp4")
        made.replace(target)
    return result
