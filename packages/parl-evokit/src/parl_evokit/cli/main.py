"""`evokit`: the documents' three programs, their loop in one process, and a look into logs and configurations.

    init-solver ─► [ online-sampling ─► log ─► offline-update ─► next model directory ] ...

Exit codes: see `options`.
"""

import sys
from pathlib import Path
from typing import Any

import click

from parl_evokit import history
from parl_evokit._version import __version__
from parl_evokit.cli.config_commands import config_group
from parl_evokit.cli.log_commands import log_group
from parl_evokit.cli.loop import loop
from parl_evokit.cli.opening import open_agent, open_solver
from parl_evokit.cli.options import (
    CONFIG_PATH,
    DIFFERENT,
    ENV,
    EPISODES,
    JSON,
    LOG_PATHS,
    MAX_DAMAGE,
    MODEL,
    MODEL_DIR,
    REVERTED,
    WAIT,
    Commands,
    exits,
    option,
    print_result,
    report_fields,
)
from parl_evokit.environments import NamedEpisode
from parl_evokit.locking import update_lock
from parl_evokit.log import LogContents
from parl_evokit.offline import offline_update as update_directory
from parl_evokit.online import sample_episodes, write_samples
from parl_evokit.report import UpdateReport
from parl_evokit.solver_dir import read_summary

__all__ = ["main"]


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="evokit")
def main() -> None:
    """Evolution online: sample with noise, log a few bytes, update offline."""
    if "" not in sys.path:  # as `python -m` has it, so that --model and --env find a module beside the user
        sys.path.append("")


@main.command("init-solver")
@MODEL_DIR
@CONFIG_PATH
@MODEL
@WAIT
@JSON
@exits
def init_solver(model_dir: Path, config_path: Path, model: str | None, wait_s: float, as_json: bool) -> None:
    """Make a new solver for the weights in a directory, and save it beside them."""
    with update_lock(model_dir, wait_s, _say):
        agent = open_agent(model_dir, config_path, model)
        agent.init_solver()
        agent.save_solver(model_dir)
    size = agent.param_size()
    fields = {"model_dir": str(model_dir), "parameters": size, "model_iter_id": agent.model_iter_id}
    print_result(as_json, fields, f"solver for {size} parameters in {model_dir}")


@main.command("online-sampling")
@option("--log-path", required=True, type=Path, help="Directory of the log; with --raw a file.")
@MODEL_DIR
@CONFIG_PATH
@MODEL
@ENV
@EPISODES
@option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Processes that play side by side.")
@option("--raw", is_flag=True, help="Write a new file in the documents' form in place of a segment.")
@JSON
@exits
def online_sampling(
    log_path: Path,
    model_dir: Path,
    config_path: Path,
    model: str | None,
    env: str,
    episodes: int,
    workers: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Evaluate perturbed models, and log each one's record and reward.

    The two halves of a mirrored pair get the same episode.
    """
    agent = open_solver(model_dir, config_path, model)
    with write_samples(log_path, raw) as log:
        rewards = sample_episodes(agent, NamedEpisode(env), episodes, log, workers)
    mean = sum(rewards) / episodes
    fields = {"model_iter_id": agent.model_iter_id, "episodes": episodes, "mean_reward": mean, "rewards": rewards}
    print_result(as_json, fields, f"{episodes} episodes of model {agent.model_iter_id}: mean reward {mean:.4g}")


@main.command("offline-update")
@LOG_PATHS
@MODEL_DIR
@option("--updated-model-dir", required=True, type=Path, help="Where the new model goes.")
@CONFIG_PATH
@MODEL
@MAX_DAMAGE
@WAIT
@JSON
@exits
def offline_update(
    log_paths: tuple[Path, ...],
    model_dir: Path,
    updated_model_dir: Path,
    config_path: Path,
    model: str | None,
    max_damage: float,
    wait_s: float,
    as_json: bool,
) -> None:
    """Update the model from what is new in the log; write weights and solver in one step."""
    report, contents = update_directory(
        lambda: open_solver(model_dir, config_path, model),
        log_paths,
        model_dir,
        updated_model_dir,
        max_damage=max_damage,
        wait_s=wait_s,
        waiting=_say,
    )
    for segment in contents.segments:
        if segment.damage:
            kept = segment.save_damaged()
            _say(f"{segment.path}: {segment.damaged_bytes} damaged bytes skipped, kept in {kept}")
    _print_update(as_json, report, contents)
    if report.rolled_back:
        raise click.exceptions.Exit(REVERTED)


@main.command("replay")
@LOG_PATHS
@MODEL_DIR
@option("--updated-model-dir", required=True, type=Path, help="What the update wrote that is to be recomputed.")
@CONFIG_PATH
@MODEL
@MAX_DAMAGE
@JSON
@exits
def replay(
    log_paths: tuple[Path, ...],
    model_dir: Path,
    updated_model_dir: Path,
    config_path: Path,
    model: str | None,
    max_damage: float,
    as_json: bool,
) -> None:
    """Recompute an update from the log, and compare digests; exit with 4 where they differ.

    The log may have grown since: what the update did not use is left out. The chain of digests in the new model's
    history is checked as well. Nothing is written.
    """
    agent = open_solver(model_dir, config_path, model)
    wanted = read_summary(updated_model_dir)["parameters_sha256"]
    history.read(updated_model_dir)  # which is checked
    report, _ = agent.replay_log(log_paths, updated_model_dir, max_damage=max_damage)
    same = report.parameters_sha256 == wanted
    fields = {"same": same, "parameters_sha256": report.parameters_sha256, "expected_sha256": wanted}
    text = f"{report.used} samples of {model_dir} give {report.parameters_sha256}"
    print_result(
        as_json,
        fields | {"used": report.used},
        f"{text}, {'as' if same else f'not {wanted} as'} in {updated_model_dir}",
    )
    if not same:
        raise click.exceptions.Exit(DIFFERENT)


def _print_update(as_json: bool, report: UpdateReport, contents: LogContents) -> None:
    if report.rolled_back:
        _say(f"reverted to the model before: {report.rolled_back}")
    unread = sum(segment.unread for segment in contents.segments)
    if unread:
        _say(f"{unread} bytes at the ends of segments are not whole records: not yet written, or cut off")
    log: dict[str, Any] = {
        "pending": contents.pending,
        "expired": contents.expired,
        "damaged": contents.damaged_bytes,
        "unread": unread,
    }
    text = (
        f"model {report.model_iter_id}: {report.used} samples ({report.pairs} pairs), "
        f"mean reward {report.mean_reward:.4g}, best {report.best_reward:.4g}; "
        f"stale {sum(report.stale.values())}, waiting {contents.pending}, set aside: {report.set_aside}"
    )
    print_result(as_json, report_fields(report) | log, text)


def _say(text: str) -> None:
    click.echo(text, err=True)


main.add_command(log_group)
main.add_command(config_group)
main.add_command(loop)
