"""Subcommands of `parl`: each reads its arguments, calls `parl_core.training`, and prints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import gymnasium

from parl_core import backends
from parl_core._version import __version__
from parl_core.actors import open_actors
from parl_core.env.vector import make_vector_env
from parl_core.errors import ParlError
from parl_core.training import (
    Evaluation,
    Run,
    evaluate,
    standard_callbacks,
    train_off_policy,
    train_on_policy,
)
from parl_core.training.acting import PredictingAgent
from parl_core.training.presets import (
    OFF_POLICY_PRESETS,
    PPO_PRESETS,
    OffPolicyPreset,
    OnPolicyPreset,
    off_policy_preset,
)
from parl_core.training.trained import Trained, make_flat_env

__all__ = ["parl"]

# Evaluations while training have seeds that those of `parl evaluate` do not share.
SEED_WHILE_TRAINING = 2**31
SEED = click.IntRange(0, 2**31 - 1)
EPISODES_WHILE_TRAINING = 20


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


@parl.group()
def train() -> None:
    """Train an agent; its files go to a new folder."""


@dataclass(frozen=True)
class _Asked:
    """What the subcommands of `parl train` share."""

    env: str
    backend: str | None
    seed: int
    steps: int | None
    actors: int
    goal: float | None
    runs: Path


_Command = Callable[..., None]


def _training_options(command: _Command) -> _Command:
    for option in (
        click.option("--runs", default="runs", type=click.Path(path_type=Path), help="Folder of all runs."),
        click.option("--goal", type=float, help="Stop when two evaluations in a row reach it; default: the preset's."),
        click.option(
            "--actors", default=0, type=click.IntRange(0), help="Remote actors for the environments; 0: this process."
        ),
        click.option("--steps", type=click.IntRange(1), help="Environment steps at most; default: the preset's."),
        click.option("--seed", default=0, type=SEED, help="Of weights, environments and sampling."),
        click.option("--backend", help="torch or paddle; default: the one installed."),
        click.argument("env", metavar="ENV"),
    ):
        command = option(command)
    return command


@train.command()
@_training_options
def ppo(**options: Any) -> None:
    """Train PPO on the Gymnasium environment ENV, such as CartPole-v1; its actions must be discrete."""
    asked = _Asked(**options)
    _train("PPO", PPO_PRESETS.get(asked.env, OnPolicyPreset()), asked)


@train.command()
@_training_options
def dqn(**options: Any) -> None:
    """Train DQN on the Gymnasium environment ENV, such as CartPole-v1; its actions must be discrete."""
    asked = _Asked(**options)
    _train("DQN", off_policy_preset("DQN", asked.env), asked)


@train.command()
@_training_options
def ddpg(**options: Any) -> None:
    """Train DDPG on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    asked = _Asked(**options)
    _train("DDPG", off_policy_preset("DDPG", asked.env), asked)


@train.command()
@_training_options
def td3(**options: Any) -> None:
    """Train TD3 on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    asked = _Asked(**options)
    _train("TD3", off_policy_preset("TD3", asked.env), asked)


@train.command()
@_training_options
def sac(**options: Any) -> None:
    """Train SAC on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    asked = _Asked(**options)
    _train("SAC", off_policy_preset("SAC", asked.env), asked)


@train.command()
@_training_options
def oac(**options: Any) -> None:
    """Train OAC on the Gymnasium environment ENV, such as Pendulum-v1; its actions must be numbers with bounds."""
    asked = _Asked(**options)
    _train("OAC", off_policy_preset("OAC", asked.env), asked)


def _train(algorithm: str, preset: OnPolicyPreset | OffPolicyPreset, asked: _Asked) -> None:
    env, seed = asked.env, asked.seed
    if asked.backend is not None:
        backends.set_backend(asked.backend)
    goal = preset.goal if asked.goal is None else asked.goal
    with Run(f"{algorithm.lower()}-{env.replace('/', '-')}", asked.runs) as run:
        trained = Trained(algorithm, env, backends.current().name, preset.hidden, dict(preset.algorithm), seed)
        agent = trained.make_agent()
        trained.write(run.path)
        watched: dict[str, Any] = {
            "evaluator": lambda: _play(agent, env, EPISODES_WHILE_TRAINING, seed=SEED_WHILE_TRAINING),
            "callbacks": standard_callbacks(run, agent, title=f"{algorithm} on {env}, seed {seed}", goal=goal),
            "seed": seed,
        }
        actors = asked.actors
        with (
            open_actors("remote", cpu_num=actors) if actors else open_actors() as system,
            make_vector_env(make_flat_env, preset.num_envs, env_kwargs={"env_id": env}, actors=system) as envs,
        ):
            if isinstance(preset, OffPolicyPreset):
                off = preset.loop if asked.steps is None else preset.loop.with_total_steps(asked.steps)
                ended = train_off_policy(agent, envs, off, evaluate_every=preset.evaluate_every, **watched)
            else:
                on = preset.loop if asked.steps is None else preset.loop.with_total_steps(asked.steps)
                ended = train_on_policy(agent, envs, on, **watched)
        if not ended.evaluations:
            agent.save(run.path / trained.FILE)
        click.echo(str(run.path))


@parl.command("evaluate")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--episodes", default=100, type=click.IntRange(1), help="How many to play.")
@click.option("--seed", default=0, type=SEED, help="Of the episodes.")
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
def evaluate_run(run: Path, episodes: int, seed: int, backend: str | None) -> None:
    """Play episodes with the best agent of the folder RUN, without exploration."""
    trained = Trained.read(run)
    backends.set_backend(backend or trained.backend)
    agent = trained.make_agent()
    agent.restore(run / trained.FILE)
    result = _play(agent, trained.env, episodes, seed=seed)
    click.echo(f"{trained.env}: mean return {result.mean:.2f}, deviation {result.std:.2f}, {episodes} episodes")


def _play(agent: PredictingAgent, env: str, episodes: int, *, seed: int) -> Evaluation:
    return evaluate(agent, make_flat_env, episodes, seed=seed, env_kwargs={"env_id": env})


@parl.command("list")
def list_parts() -> None:
    """List what is installed, and the presets of `parl train`."""
    for name in backends.installed():
        click.echo(f"backend {name}: {', '.join(backends.load(name).algorithms.__all__)}")
    if not backends.installed():
        click.echo("no backend is installed; choose one: pip install parl-torch, pip install parl-paddle")
    for env in PPO_PRESETS:
        click.echo(f"preset ppo {env}")
    for algorithm, presets in OFF_POLICY_PRESETS.items():
        for env in presets:
            click.echo(f"preset {algorithm.lower()} {env}")
