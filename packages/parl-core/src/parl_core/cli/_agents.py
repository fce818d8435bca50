"""`parl evaluate` and `parl play`, what trained agents do; `parl export` and `parl import`, their files."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import gymnasium

from parl_core import backends
from parl_core.cli._request import FILE, SEED
from parl_core.export import FORMATS, export_run
from parl_core.importing import import_run
from parl_core.training.recipe_run import check_rendering, play
from parl_core.training.recipes import NETWORKS
from parl_core.training.run import Run
from parl_core.training.settings import algorithm_named
from parl_core.training.trained import Trained

__all__ = ["evaluate_run", "export_agent", "import_agent", "play_run"]

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("evaluate")
@click.argument("run", type=_FOLDER)
@click.option("--episodes", default=100, type=click.IntRange(1), help="Number of episodes.")
@click.option("--seed", default=0, type=SEED, help="Seed of the episodes.")
@click.option(
    "--max-steps", default=100_000, type=click.IntRange(1), help="Maximum steps of an episode; longer ones are cut."
)
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="Use the agent from the end (or the last evaluation), not the best one.")
@click.option("--stochastic", is_flag=True, help="Draw actions as in training; default: the best ones.")
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
@click.option("--video", type=click.Path(path_type=Path), help="Write FILE.mp4 instead of opening a window.")
@click.option("--episodes", default=1, type=click.IntRange(1), help="Number of episodes; each has a separate video.")
@click.option("--seed", default=0, type=SEED, help="Seed of the episodes.")
@click.option(
    "--max-steps", default=100_000, type=click.IntRange(1), help="Maximum steps of an episode; longer ones are cut."
)
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="Use the agent from the end, not the best one.")
@click.option("--stochastic", is_flag=True, help="Draw actions as in training; default: the best ones.")
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


@click.command("export")
@click.argument("run", type=_FOLDER)
@click.option("--to", default="numpy", type=click.Choice(list(FORMATS)), help="The format.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File (of paddle-inference a new folder); default: in RUN.",
)
@click.option("--last", is_flag=True, help="Use the agent from the end (or the last evaluation), not the best one.")
@click.option("--observations", default=1000, type=click.IntRange(1), help="Number of actions to compare.")
@click.option("--seed", default=0, type=click.IntRange(0, 2**31 - 1), help="Seed of the episodes for the comparison.")
def export_agent(run: Path, to: str, out: Path | None, last: bool, observations: int, seed: int) -> None:
    """Write the best agent of the folder RUN as a file that runs without PARL's training parts.

    numpy is read by parl_core.policy, with numpy alone; onnx by ONNX Runtime; torch-export by torch.export.load;
    paddle-inference by paddle.inference. The file gets its name when a fresh process has acted with it as the agent
    does.
    """
    written = export_run(run, to, out, last=last, observations=observations, seed=seed)
    click.echo(
        f"{written.path}: {written.size} bytes; of {written.observations} actions {written.equal} are the agent's, "
        f"numbers differ by at most {written.difference:.2g}"
    )


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("env")
@click.option("--algorithm", help="Algorithm of a checkpoint of PARL 2.x, which does not contain it.")
@click.option(
    "--activation", default="", help="Activation of its hidden layers; default: tanh for PPO and A2C, else relu."
)
@click.option(
    "--normalization",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of Stable-Baselines3's VecNormalize.",
)
@click.option("--backend", help="torch or paddle; default: the one installed.")
@click.option("--env-module", "module", default="", help="Import this module first: it registers ENV.")
@click.option("--run", type=FILE, help="Folder for the agent; default: a new one in --runs.")
@click.option("--runs", default="runs", type=FILE, help="Folder of all runs.")
def import_agent(
    file: Path,
    env: str,
    algorithm: str | None,
    activation: str,
    normalization: Path | None,
    backend: str | None,
    module: str,
    run: Path | None,
    runs: Path,
) -> None:
    """Import the agent in FILE, which acts in the environment ENV, and write a run folder for it.

    FILE is a zip file of Stable-Baselines3 (DQN, PPO, A2C, SAC, TD3, DDPG), or a checkpoint of PARL 2.x on torch or
    paddle, of a model that is a chain of layers as in PARL's examples. It is read as data; no code in it is run.

    \b
    parl import ppo_cartpole.zip CartPole-v1
    parl import model.ckpt CartPole-v1 --algorithm dqn
    """  # noqa: D301 - click's mark of a paragraph that keeps its lines
    if backend:
        backends.set_backend(backend)
    named = algorithm_named(algorithm, tuple(NETWORKS)) if algorithm else ""
    folder = run or Run(f"imported-{file.stem}", runs).path
    found = import_run(
        file, env, folder, algorithm=named, activation=activation, normalization=normalization, module=module
    )
    click.echo(f"{found.folder}: {found.algorithm} with {found.parameters} numbers")
