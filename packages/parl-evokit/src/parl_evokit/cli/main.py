"""`evokit`: the documents' three programs, a look into logs, and a check of configurations.

    init-solver ─► [ online-sampling ─► log ─► offline-update ─► next model directory ] ...

Exit codes: 0 done, 2 usage, 3 nothing new, 4 damaged or foreign input, 5 the guard went back to the model before.
"""

import json
import secrets
from pathlib import Path

import click

from parl_evokit._version import __version__
from parl_evokit.cli.options import (
    CONFIG_PATH,
    JSON,
    LOG_PATHS,
    MODEL,
    MODEL_DIR,
    REVERTED,
    Commands,
    exits,
    open_agent,
    print_update,
)
from parl_evokit.config import Config
from parl_evokit.environments import Episode, cartpole, load_object
from parl_evokit.log import LogWriter, read_log, write_raw
from parl_evokit.log.writer import SUFFIX
from parl_evokit.records import SamplingInfo

__all__ = ["main"]


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="evokit")
def main() -> None:
    """Evolution online: sample with noise, log a few bytes, update offline."""


@main.command("init-solver")
@MODEL_DIR
@CONFIG_PATH
@MODEL
@exits
def init_solver(model_dir: Path, config_path: Path, model: str) -> None:
    """Make a new solver for the weights in a directory, and save it beside them."""
    agent = open_agent(model_dir, config_path, model)
    agent.init_solver()
    agent.save_solver(model_dir)
    click.echo(f"solver for {agent.param_size()} parameters in {model_dir}")


@main.command("online-sampling")
@click.option("--log_path", "--log-path", required=True, type=Path, help="Directory of the log.")
@MODEL_DIR
@CONFIG_PATH
@MODEL
@click.option("--env", default="cartpole", show_default=True, help="`cartpole`, or package.module:function.")
@click.option("--episodes", default=10, show_default=True, type=click.IntRange(min=1))
@exits
def online_sampling(log_path: Path, model_dir: Path, config_path: Path, model: str, env: str, episodes: int) -> None:
    """Evaluate perturbed models, and log each one's record and reward.

    The two halves of a mirrored pair get the same episode.
    """
    agent = open_agent(model_dir, config_path, model)
    agent.load_solver(model_dir)
    episode: Episode = cartpole() if env == "cartpole" else load_object(env)()
    clone = agent.clone()
    rewards: list[float] = []
    seed = 0
    with LogWriter(log_path) as log:
        for number in range(episodes):
            info = clone.add_noise()
            if number % 2 == 0:
                seed = secrets.randbits(31)
            rewards.append(episode(clone, seed))
            log.reward(info, rewards[-1])
    click.echo(f"{episodes} episodes of model {agent.model_iter_id}: mean reward {sum(rewards) / episodes:.4g}")


@main.command("offline-update")
@LOG_PATHS
@MODEL_DIR
@click.option("--updated_model_dir", "--updated-model-dir", required=True, type=Path, help="Where the new model goes.")
@CONFIG_PATH
@MODEL
@click.option("--max-damage", default=0.01, show_default=True, help="Part of a segment's bytes that may be damaged.")
@JSON
@exits
def offline_update(
    log_paths: tuple[Path, ...],
    model_dir: Path,
    updated_model_dir: Path,
    config_path: Path,
    model: str,
    max_damage: float,
    as_json: bool,
) -> None:
    """Update the model from what is new in the log; write weights and solver in one step."""
    agent = open_agent(model_dir, config_path, model)
    agent.load_solver(model_dir)
    report, contents = agent.update_from_log(log_paths, max_damage=max_damage)
    damaged = [segment for segment in contents.segments if segment.damage]
    agent.save(updated_model_dir)
    for segment in damaged:
        kept = segment.save_damaged()
        click.echo(f"{segment.path}: {segment.damaged_bytes} damaged bytes skipped, kept in {kept}", err=True)
    print_update(report, as_json, pending=contents.pending, damaged=sum(s.damaged_bytes for s in damaged))
    if report.rolled_back:
        raise click.exceptions.Exit(REVERTED)


@main.group("log", cls=Commands)
def log_group() -> None:
    """Look into logs."""


@log_group.command("show")
@click.argument("paths", nargs=-1, required=True, type=Path)
@exits
def log_show(paths: tuple[Path, ...]) -> None:
    """Print each sample with its reward, one JSON object a line."""
    contents = read_log(paths, max_damage=1.0)
    for info, reward in zip(contents.infos, contents.rewards, strict=True):
        sample = {"key": info.key, "model_iter_id": info.model_iter_id, "fingerprint": f"{info.fingerprint:08x}"}
        click.echo(json.dumps(sample | {"reward": reward}))


@log_group.command("verify")
@click.argument("paths", nargs=-1, required=True, type=Path)
@exits
def log_verify(paths: tuple[Path, ...]) -> None:
    """Count good records and damaged bytes of each segment; exit with 4 where something is damaged."""
    contents = read_log(paths, max_damage=1.0)
    for segment in contents.segments:
        click.echo(
            f"{segment.path}: {segment.records} records, {segment.damaged_bytes} bytes damaged in "
            f"{len(segment.damage)} places, {segment.unread} bytes unfinished at the end"
        )
    if any(segment.damage for segment in contents.segments):
        raise click.exceptions.Exit(4)


@log_group.command("convert")
@click.argument("source", type=Path)
@click.argument("target", type=Path)
@exits
def log_convert(source: Path, target: Path) -> None:
    """Write the samples of a log in the documents' form, or those of such a file as segments.

    The form of SOURCE decides: a directory or a segment becomes a file in the documents' form, anything else a
    directory of segments.
    """
    contents = read_log(source, max_damage=1.0)
    if source.is_dir() or source.suffix == SUFFIX:
        write_raw(target, contents.infos, contents.rewards)
    else:
        with LogWriter(target) as log:
            for info, reward in zip(contents.infos, contents.rewards, strict=True):
                log.reward(SamplingInfo(info.key, info.model_iter_id, info.fingerprint), reward)
    click.echo(f"{len(contents.infos)} samples written to {target}")


@main.group("config", cls=Commands)
def config_group() -> None:
    """Check and convert configurations."""


@config_group.command("check")
@click.argument("path", type=Path)
@exits
def config_check(path: Path) -> None:
    """Say whether a configuration can be used."""
    Config.load(path)
    click.echo(f"{path} is a configuration")


@config_group.command("convert")
@click.argument("path", type=Path)
@exits
def config_convert(path: Path) -> None:
    """Print a configuration, of whichever form, with all its settings in the nested form."""
    click.echo(Config.load(path).to_prototxt(), nl=False)
