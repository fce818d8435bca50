"""Subcommands of `parl`: each reads its arguments, calls `parl_core.training`, and prints."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import gymnasium

from parl_core import backends
from parl_core._version import __version__
from parl_core.cli._export import export_agent
from parl_core.cli._migrate import migrate
from parl_core.errors import ParlError
from parl_core.training.recipe_run import RecipeRun, play
from parl_core.training.recipes import RECIPES
from parl_core.training.results import verify
from parl_core.training.run import Run
from parl_core.training.trained import Trained

__all__ = ["parl"]

SEED = click.IntRange(0, 2**31 - 1)


class _Group(click.Group):
    """Shows what a user can set right as one line; whatever else is raised is a defect and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ParlError, ImportError, OSError, gymnasium.error.Error) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="parl")
def parl() -> None:
    """Train agents and evaluate them."""


parl.add_command(migrate)


@parl.group()
def train() -> None:
    """Train an agent; its files go to a new folder."""


_Command = Callable[..., None]


def _finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number.")
    return value


def _training_options(command: _Command) -> _Command:
    for option in (
        click.option("--videos", type=click.IntRange(1), help="Record a video after every so many evaluations."),
        click.option(
            "--checkpoint-every", default=10_000, type=click.IntRange(1), help="Steps between two checkpoints."
        ),
        click.option("--stop-after", type=click.IntRange(1), help="Stop there for now; `parl resume` goes on."),
        click.option(
            "--run", type=click.Path(path_type=Path), help="Folder of this run; default: a new one in --runs."
        ),
        click.option("--runs", default="runs", type=click.Path(path_type=Path), help="Folder of all runs."),
        click.option(
            "--goal",
            type=float,
            callback=_finite,
            help="Stop when two evaluations in a row reach it; default: the recipe's.",
        ),
        click.option(
            "--actors", default=0, type=click.IntRange(0), help="Remote actors for the environments; 0: this process."
        ),
        click.option(
            "--steps",
            type=click.IntRange(1),
            help="Environment steps (of PPO's rollouts the last one is completed); default: the recipe's.",
        ),
        click.option("--seed", default=0, type=SEED, help="Of weights, environments and sampling."),
        click.option("--backend", help="torch or paddle; default: the one installed."),
        click.argument("env", metavar="ENV"),
    ):
        command = option(command)
    return command


@train.command()
@_training_options
def ppo(**options: Any) -> None:
    """Train PPO on the Gymnasium environment ENV, such as CartPole-v1."""
    _train("PPO", **options)


@train.command()
@_training_options
def dqn(**options: Any) -> None:
    """Train DQN on the Gymnasium environment ENV, such as CartPole-v1; its actions must be discrete."""
    _train("DQN", **options)


@train.command()
@_training_options
def ddpg(**options: Any) -> None:
    """Train DDPG on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    _train("DDPG", **options)


@train.command()
@_training_options
def td3(**options: Any) -> None:
    """Train TD3 on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    _train("TD3", **options)


@train.command()
@_training_options
def sac(**options: Any) -> None:
    """Train SAC on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    _train("SAC", **options)


@train.command()
@_training_options
def oac(**options: Any) -> None:
    """Train OAC on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    _train("OAC", **options)


def _train(
    algorithm: str,
    *,
    env: str,
    backend: str | None,
    seed: int,
    steps: int | None,
    goal: float | None,
    checkpoint_every: int,
    run: Path | None,
    runs: Path,
    **how: Any,
) -> None:
    if backend is not None:
        backends.set_backend(backend)
    folder = Run(f"{algorithm.lower()}-{env.replace('/', '-')}", runs) if run is None else Run.at(run)
    with folder:
        asked = RecipeRun(algorithm, env, backends.current().name, seed, steps, goal, checkpoint_every)
        _train_in(folder, asked, **how)


def _train_in(
    run: Run, asked: RecipeRun, *, actors: int, stop_after: int | None, videos: int | None, fresh_episodes: bool = False
) -> None:
    asked.train(run, actors=actors, max_steps=stop_after, videos=videos, fresh_episodes=fresh_episodes)
    click.echo(str(run.path))


@parl.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(1), help="Environment steps at most, from the run's beginning.")
@click.option("--stop-after", type=click.IntRange(1), help="Stop there for now.")
@click.option(
    "--actors", default=0, type=click.IntRange(0), help="Remote actors for the environments; 0: this process."
)
@click.option("--backend", help="torch or paddle; default: the one of the run. Another one draws other numbers.")
@click.option("--fresh-episodes", is_flag=True, help="Begin new episodes, where the old ones cannot be taken up again.")
@click.option("--videos", type=click.IntRange(1), help="Record a video after every so many evaluations.")
def resume(run: Path, steps: int | None, backend: str | None, **how: Any) -> None:
    """Go on with the run in the folder RUN from its last checkpoint, as if it had never stopped."""
    with Run.resume(run) as folder:
        asked = RecipeRun.read(folder.path)
        backends.set_backend(backend or asked.backend)
        _train_in(folder, asked if steps is None else asked.extended(steps), **how)


@parl.command("evaluate")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--episodes", default=100, type=click.IntRange(1), help="How many to play.")
@click.option("--seed", default=0, type=SEED, help="Of the episodes.")
@click.option("--max-steps", default=100_000, type=click.IntRange(1), help="Of one episode; then it is cut.")
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="The agent as it was at the end (or the last evaluation), not the best one.")
def evaluate_run(run: Path, episodes: int, seed: int, max_steps: int, backend: str | None, last: bool) -> None:
    """Play episodes with the best agent of the folder RUN, without exploration."""
    trained = Trained.read(run)
    backends.set_backend(backend or trained.backend)
    agent = trained.make_agent()
    agent.restore(run / (trained.LAST if last else trained.FILE))
    result = play(agent, trained.env, episodes, seed=seed, max_steps=max_steps)
    click.echo(f"{trained.env}: mean return {result.mean:.2f}, deviation {result.std:.2f}, {episodes} episodes")


@parl.command("verify")
@click.argument("result", type=click.Path(path_type=Path))
def verify_result(result: Path) -> None:
    """Repeat the runs of RESULT from their own record and say whether they lie inside its interval.

    RESULT is the file of one run (results/dqn-cartpole/torch-100.json), which is compared with the range of all runs of
    its row, or a row (results/dqn-cartpole/torch), whose interval is that of its interquartile mean. The exit status
    is 1 where the repetition lies outside.
    """

    def told(run: str, share: float) -> None:
        click.echo(f"{run}: {share:.0%}", err=True)

    found = verify(result, progress=told)
    click.echo(str(found))
    if not found.inside:
        raise SystemExit(1)


@parl.command("list")
def list_parts() -> None:
    """List what is installed, and the recipes of `parl train`."""
    for name in backends.installed():
        click.echo(f"backend {name}: {', '.join(backends.load(name).algorithms.__all__)}")
    if not backends.installed():
        click.echo("no backend is installed; choose one: pip install parl-torch, pip install parl-paddle")
    for algorithm, env in RECIPES:
        if algorithm.lower() in train.commands and env in gymnasium.registry:
            click.echo(f"recipe {algorithm.lower()} {env}")


parl.add_command(export_agent)
