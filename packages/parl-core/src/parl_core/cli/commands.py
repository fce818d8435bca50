"""Subcommands of `parl`: each reads its arguments, calls `parl_core.training`, and prints."""

from pathlib import Path

import click
import gymnasium

from parl_core import backends
from parl_core._version import __version__
from parl_core.actors import open_actors
from parl_core.env.vector import make_vector_env
from parl_core.errors import ParlError
from parl_core.training import Evaluation, Run, evaluate, standard_callbacks, train_on_policy
from parl_core.training.acting import PredictingAgent
from parl_core.training.presets import PPO_PRESETS, OnPolicyPreset
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


@train.command()
@click.argument("env", metavar="ENV")
@click.option("--backend", help="torch or paddle; default: the one installed.")
@click.option("--seed", default=0, type=SEED, help="Of weights, environments and sampling.")
@click.option("--steps", type=click.IntRange(1), help="Environment steps at most; default: the preset's.")
@click.option(
    "--actors", default=0, type=click.IntRange(0), help="Remote actors for the environments; 0: this process."
)
@click.option("--goal", type=float, help="Stop when two evaluations in a row reach it; default: the preset's.")
@click.option("--runs", default="runs", type=click.Path(path_type=Path), help="Folder of all runs.")
def ppo(
    env: str, backend: str | None, seed: int, steps: int | None, actors: int, goal: float | None, runs: Path
) -> None:
    """Train PPO on the Gymnasium environment ENV, such as CartPole-v1; its actions must be discrete."""
    preset = PPO_PRESETS.get(env, OnPolicyPreset())
    if backend is not None:
        backends.set_backend(backend)
    loop = preset.loop if steps is None else preset.loop.with_total_steps(steps)
    goal = preset.goal if goal is None else goal
    with Run(f"ppo-{env.replace('/', '-')}", runs) as run:
        trained = Trained("PPO", env, backends.current().name, preset.hidden, dict(preset.algorithm), seed)
        agent = trained.make_agent()
        trained.write(run.path)
        with (
            open_actors("remote", cpu_num=actors) if actors else open_actors() as system,
            make_vector_env(make_flat_env, preset.num_envs, env_kwargs={"env_id": env}, actors=system) as envs,
        ):
            ended = train_on_policy(
                agent,
                envs,
                loop,
                evaluator=lambda: _play(agent, env, EPISODES_WHILE_TRAINING, seed=SEED_WHILE_TRAINING),
                callbacks=standard_callbacks(run, agent, title=f"PPO on {env}, seed {seed}", goal=goal),
                seed=seed,
            )
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
