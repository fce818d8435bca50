"""The command `parl import`."""

from pathlib import Path

import click

from parl_core import backends
from parl_core.cli._request import FILE
from parl_core.importing import import_run
from parl_core.training.recipes import NETWORKS
from parl_core.training.run import Run
from parl_core.training.settings import algorithm_named

__all__ = ["import_agent"]


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("env")
@click.option("--algorithm", help="Of a checkpoint of PARL 2.x, which does not say it.")
@click.option("--activation", default="", help="Of such a model's hidden layers; default: tanh of PPO, A2C, else relu.")
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
    """Take over the agent in FILE, which acts in the environment ENV: and write a run of it.

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
