"""`evokit loop`: the documents' loop in one process, with a progress bar and a picture of its curve."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import click

from parl_evokit.agent import ESAgent
from parl_evokit.cli.opening import open_agent, open_solver
from parl_evokit.cli.options import CONFIG_PATH, ENV, EPISODES, JSON, MODEL, WAIT, exits, option, print_result
from parl_evokit.environments import NamedEpisode
from parl_evokit.errors import EvolutionError
from parl_evokit.locking import update_lock
from parl_evokit.models.built_in import built_in
from parl_evokit.online_loop import online_rounds, play
from parl_evokit.warehouse import Warehouse

__all__ = ["loop"]

COUNT = click.IntRange(min=1)


@click.command("loop")
@CONFIG_PATH
@option("--log-path", default="sampling_log", show_default=True, type=Path, help="Directory of the log.")
@option("--warehouse", default="model_warehouse", show_default=True, type=Path, help="Where model_dir_N are.")
@option("--rounds", default=200, show_default=True, type=COUNT, help="Updates from here on.")
@EPISODES
@option("--workers", default=1, show_default=True, type=COUNT, help="Processes that play side by side.")
@option("--evaluate-every", default=10, show_default=True, type=click.IntRange(min=0), help="Rounds; 0 for never.")
@option("--evaluate-episodes", default=10, show_default=True, type=COUNT, help="Without noise, at each evaluation.")
@option("--target", type=float, help="End when an evaluation has this mean reward.")
@option("--picture", default="curve.png", show_default=True, type=Path, help="Where the curve goes; a dash for none.")
@MODEL
@ENV
@WAIT
@JSON
@exits
def loop(
    config_path: Path,
    log_path: Path,
    warehouse: Path,
    rounds: int,
    episodes: int,
    workers: int,
    evaluate_every: int,
    evaluate_episodes: int,
    target: float | None,
    picture: Path,
    model: str | None,
    env: str,
    wait_s: float,
    as_json: bool,
) -> None:
    """Sample online and update offline, over and over; goes on from the newest model in the warehouse.

    In an empty warehouse a built-in model is put as model_dir_0; weights of another go there before.
    """
    drawing = str(picture) != "-"
    if drawing and importlib.util.find_spec("matplotlib") is None:
        raise EvolutionError("the picture needs matplotlib: pip install parl-evokit[loop], or give --picture=-")
    episode = NamedEpisode(env)
    episode.open()  # what is missing is said before anything is written
    with update_lock(warehouse, wait_s, lambda text: click.echo(text, err=True)):
        agent = _newest(warehouse, config_path, model)
        means: list[tuple[int, float]] = []
        reverted: list[int] = []
        evaluations: list[tuple[int, list[float]]] = []
        with click.progressbar(length=rounds, label=f"model {agent.model_iter_id}", file=sys.stderr) as bar:
            for done in online_rounds(
                agent, episode, log_path, warehouse, rounds=rounds, episodes=episodes, workers=workers
            ):
                means.append((done.model_iter_id, sum(done.rewards) / len(done.rewards)))
                if done.report is not None and done.report.rolled_back:
                    reverted.append(done.model_iter_id)
                if evaluate_every and (done.number % evaluate_every == 0 or done.number == rounds):
                    evaluations.append((done.model_iter_id, play(agent, episode, evaluate_episodes)))
                bar.label = _label(means, evaluations)
                bar.update(1)
                if target is not None and evaluations and _mean(evaluations[-1][1]) >= target:
                    break
    if drawing:
        _draw(picture, means, evaluations, target)
    fields: dict[str, Any] = {
        "model_iter_id": agent.model_iter_id,
        "rounds": len(means),
        "sampled": means,
        "evaluated": [(model_iter_id, _mean(returns)) for model_iter_id, returns in evaluations],
        "rolled_back": reverted,
        "picture": str(picture) if drawing else None,
    }
    text = _label(means, evaluations) + (f"; {len(reverted)} models taken back" if reverted else "")
    print_result(as_json, fields, text + (f"; curve in {picture}" if drawing else ""))


def _newest(warehouse: Path, config_path: Path, model: str | None) -> ESAgent:
    found = Warehouse(warehouse).newest()
    directory = warehouse / "model_dir_0" if found is None else found[1]
    if found is None:
        first = built_in(model or "cartpole")
        if first is None:
            raise EvolutionError(f"{warehouse} is empty: put the first weights of your model into {directory}")
        directory.mkdir(parents=True)
        first.save(directory)
    if (directory / "solver.json").exists():
        return open_solver(directory, config_path, model)
    agent = open_agent(directory, config_path, model)
    agent.init_solver()
    agent.save_solver(directory)
    return agent


def _label(means: list[tuple[int, float]], evaluations: list[tuple[int, list[float]]]) -> str:
    text = f"model {means[-1][0]}: sampled {means[-1][1]:.4g}"
    return text + (f", without noise {_mean(evaluations[-1][1]):.4g}" if evaluations else "")


def _mean(returns: list[float]) -> float:
    return sum(returns) / len(returns)


def _draw(
    path: Path, means: list[tuple[int, float]], evaluations: list[tuple[int, list[float]]], target: float | None
) -> None:
    from parl_core.training.curve import draw_curve
    from parl_core.training.events import Episode, Evaluation

    draw_curve(
        path,
        "evolution online",
        [model_iter_id for model_iter_id, _ in means],
        [mean for _, mean in means],
        [Evaluation([Episode(r, 0) for r in returns], model_iter_id) for model_iter_id, returns in evaluations],
        target,
        xlabel="updates",
        label="mean of a round's samples",
    )
