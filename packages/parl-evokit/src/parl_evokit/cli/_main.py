"""`evokit`: the three programs of the PARL 1.x manual, their loop in one process, and commands for logs and settings.

    init-solver ─► [ online-sampling ─► log ─► offline-update ─► next model directory ] ...

`_options` has the exit codes.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from parl_core.atomic_write import atomic_write
from parl_core.training.curves import draw_curve
from parl_core.training.events import Episode, Evaluation
from parl_evokit._directories import update_lock
from parl_evokit._report import UpdateReport
from parl_evokit._solver_dir import read_history, read_summary
from parl_evokit._version import __version__
from parl_evokit.agent import ESAgent
from parl_evokit.async_agent import Warehouse
from parl_evokit.cli._options import (
    CONFIG_PATH,
    DAMAGED,
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
    FiniteRange,
    exits,
    open_agent,
    open_solver,
    option,
    print_result,
    report_fields,
    to_json,
)
from parl_evokit.config import Config
from parl_evokit.environments import NamedEpisode
from parl_evokit.errors import EvolutionError, LogError, SolverError, StorageError
from parl_evokit.log import LogContents, SegmentReport, read_log
from parl_evokit.log._frames import SUFFIX
from parl_evokit.log._segments import QUARANTINE, compact, prune
from parl_evokit.metrics import exposition, page
from parl_evokit.models._find import built_in
from parl_evokit.online import offline_update as update_directory
from parl_evokit.online import online_rounds, play, sample_episodes, write_samples
from parl_evokit.tokens import create_secret, refusals, rotate_secret

__all__ = ["main"]


COUNT = click.IntRange(min=1)
WORKERS = option(
    "--workers", default=1, show_default=True, type=COUNT, help="Number of processes that play in parallel."
)
PATHS = click.argument("paths", nargs=-1, required=True, type=Path)


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="evokit")
def main() -> None:
    """Train a model online with evolution: sample with noise, log a few bytes, update offline."""
    if "" not in sys.path:  # as with `python -m`, so that --model and --env find modules in the working directory
        sys.path.append("")


@main.command("init-solver")
@MODEL_DIR
@CONFIG_PATH
@MODEL
@WAIT
@JSON
@exits
def init_solver(model_dir: Path, config_path: Path, model: str | None, wait_s: float, as_json: bool) -> None:
    """Make a solver for the weights in a directory, and save it there."""
    with update_lock(model_dir, wait_s, _warn):
        agent = open_agent(model_dir, config_path, model)
        agent.init_solver()
        agent.save_solver(model_dir)
    size = agent.param_size()
    fields = {"model_dir": str(model_dir), "parameters": size, "model_iter_id": agent.model_iter_id}
    print_result(as_json, fields, f"solver for {size} parameters in {model_dir}")


@main.command("online-sampling")
@option("--log-path", required=True, type=Path, help="Directory of the log; with --raw, a file.")
@MODEL_DIR
@CONFIG_PATH
@MODEL
@ENV
@EPISODES
@WORKERS
@option("--raw", is_flag=True, help="Write a new file in the raw form instead of a segment.")
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
    """Evaluate perturbed models in episodes, and log a record and a reward of each.

    Both halves of a mirrored pair get the same episode.
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
@option("--updated-model-dir", required=True, type=Path, help="Directory of the new model.")
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
    """Update the model from the new records of the log; write weights and solver in one step."""
    report, contents = update_directory(
        lambda: open_solver(model_dir, config_path, model),
        log_paths,
        model_dir,
        updated_model_dir,
        max_damage=max_damage,
        wait_s=wait_s,
        waiting=_warn,
    )
    for segment in contents.segments:
        if segment.damage:
            _warn(f"{segment.path}: {segment.damaged_bytes} damaged bytes skipped, {_kept(segment)}")
    for segment in contents.quarantined:
        _warn(f"{segment.path}: {segment.problem or 'its good records count'}; {_place(segment)}")
    for segment in contents.unreadable:
        _warn(f"{segment.path}: {segment.problem}; the next update tries again")
    _print_update(as_json, report, contents)
    if report.rolled_back:
        raise click.exceptions.Exit(REVERTED)


@main.command("replay")
@LOG_PATHS
@MODEL_DIR
@option("--updated-model-dir", required=True, type=Path, help="Directory that the original update wrote.")
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
    """Recompute an update from the log, and compare digests; exit with 4 if they differ.

    The log may have grown since: records that the update did not use are left out. The command also checks the chain
    of digests in the history of the new model. It writes nothing.
    """
    agent = open_solver(model_dir, config_path, model)
    summary = read_summary(updated_model_dir)
    wanted = summary["parameters_sha256"]
    if not read_history(updated_model_dir, summary):
        raise SolverError(f"{updated_model_dir} has no history, which an update writes: restore it from a copy")
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


@main.command("loop")
@CONFIG_PATH
@option("--log-path", default="sampling_log", show_default=True, type=Path, help="Directory of the log.")
@option(
    "--warehouse",
    default="model_warehouse",
    show_default=True,
    type=Path,
    help="Directory that contains the directories model_dir_N.",
)
@option("--rounds", default=200, show_default=True, type=COUNT, help="Number of rounds.")
@EPISODES
@WORKERS
@option(
    "--evaluate-every",
    default=10,
    show_default=True,
    type=click.IntRange(min=0),
    help="Rounds between two evaluations; 0 for no evaluations.",
)
@option(
    "--evaluate-episodes", default=10, show_default=True, type=COUNT, help="Episodes without noise at each evaluation."
)
@option("--target", type=FiniteRange(), help="Mean reward of an evaluation at which the loop ends.")
@option(
    "--picture",
    default="curve.png",
    show_default=True,
    type=Path,
    help="File for the curve of rewards; a dash for no file.",
)
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
    """Repeat online sampling and offline updates, starting from the newest model in the warehouse.

    If the warehouse is empty, a built-in model becomes model_dir_0; put the weights of another model there first.
    """
    drawing = str(picture) != "-"
    if drawing and importlib.util.find_spec("matplotlib") is None:
        raise EvolutionError("the picture needs matplotlib: pip install parl-evokit[loop], or pass --picture=-")
    if drawing and (picture.is_dir() or not picture.parent.is_dir()):
        reason = "it is a directory" if picture.is_dir() else f"there is no directory {picture.parent}"
        raise EvolutionError(f"{picture} cannot be the file of the picture: {reason}")
    episode = NamedEpisode(env)
    episode.open()  # missing parts raise errors before anything is written
    with update_lock(warehouse, wait_s, _warn):
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


@main.group("log", cls=Commands)
def log_group() -> None:
    """Print, check and convert logs."""


@log_group.command("show")
@PATHS
@JSON
@exits
def log_show(paths: tuple[Path, ...], as_json: bool) -> None:
    """Print each sample with its reward, as one JSON object per line; with --json, print one object with all."""
    contents = read_log(paths, max_damage=1.0)
    samples = [
        {
            "key": info.key,
            "model_iter_id": info.model_iter_id,
            "fingerprint": f"{info.fingerprint:08x}",
            "reward": reward,
        }
        for info, reward in zip(contents.infos, contents.rewards, strict=True)
    ]
    if as_json:
        click.echo(to_json({"samples": samples, "pending": contents.pending, "damaged": contents.damaged_bytes}))
        return
    for sample in samples:
        click.echo(to_json(sample))
    if contents.damaged_bytes:
        click.echo(f"{contents.damaged_bytes} damaged bytes were left out", err=True)


@log_group.command("verify")
@PATHS
@JSON
@exits
def log_verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Count good records and damaged bytes of each segment; exit with 4 if there is damage."""
    contents = read_log(paths, max_damage=1.0)
    segments = [
        {
            "path": str(segment.path),
            "segment": segment.segment,
            "records": segment.records,
            "damage": segment.damage,
            "damaged": segment.damaged_bytes,
            "unread": segment.unread,
            "problem": segment.problem,
        }
        for segment in contents.segments
    ]
    lines = [
        f"{segment.path}: {segment.records} records, {segment.damaged_bytes} bytes damaged in "
        f"{len(segment.damage)} places, {segment.unread} bytes unfinished at the end"
        f"{segment.problem and '; it is ignored: ' + segment.problem}"
        for segment in contents.segments
    ]
    print_result(as_json, {"segments": segments, "pending": contents.pending}, "\n".join(lines) or "no segments")
    if contents.damaged_bytes or contents.unreadable:
        raise click.exceptions.Exit(DAMAGED)


DAYS = option(
    "--older-than-days",
    default=0.0,
    show_default=True,
    type=FiniteRange(min=0.0),
    help="Only segments that have not been written to for this many days.",
)


@log_group.command("stats")
@PATHS
@JSON
@exits
def log_stats(paths: tuple[Path, ...], as_json: bool) -> None:
    """Count segments, records, models and refused tokens of logs."""
    contents = read_log(paths, max_damage=1.0)
    samples, waiting = contents.samples, contents.waiting
    models = sorted({*samples.models.tolist(), *waiting.models.tolist()})
    aside = sum(len(list((path / QUARANTINE).glob("*"))) for path in paths if path.is_dir())
    fields = {
        "segments": len(contents.segments),
        "bytes": sum(segment.size for segment in contents.segments),
        "rewards": len(samples),
        "waiting": len(waiting),
        "models": [models[0], models[-1]] if models else [],
        "first": contents.earliest_us / 1e6 or None,  # records need no time
        "last": contents.latest_us / 1e6 or None,
        "refused": refusals(contents.refused),
        "damaged": contents.damaged_bytes,
        "quarantined": aside,
    }
    print_result(
        as_json, fields, "\n".join(f"{name}: {'-' if value is None else value}" for name, value in fields.items())
    )


@log_group.command("prune")
@PATHS
@MODEL_DIR
@DAYS
@option("--dry-run", is_flag=True, help="Only count the segments that would be removed.")
@JSON
@exits
def log_prune(paths: tuple[Path, ...], model_dir: Path, older_than_days: float, dry_run: bool, as_json: bool) -> None:
    """Remove segments that have been used completely; MODEL_DIR is the directory of the newest model.

    Segments with records of other models stay, and an update whose segments are removed cannot be replayed.
    """
    removed = prune(paths, **_used_by(model_dir), older_than_days=older_than_days, dry_run=dry_run)
    fields = {"removed": len(removed.segments), "bytes": removed.size, "kept": removed.kept, "dry_run": dry_run}
    print_result(as_json, fields, f"{len(removed.segments)} segments, {removed.size} bytes; {removed.kept} stay")


@log_group.command("compact")
@PATHS
@MODEL_DIR
@option("--to", "archive", required=True, type=Path, help="Directory of the archive.")
@DAYS
@JSON
@exits
def log_compact(paths: tuple[Path, ...], model_dir: Path, archive: Path, older_than_days: float, as_json: bool) -> None:
    """Move segments that have been used completely into large segments in an archive.

    Segments with records of other models stay, and an update whose segments are removed cannot be replayed.
    """
    done = compact(paths, archive=archive, **_used_by(model_dir), older_than_days=older_than_days)
    fields = {
        "removed": len(done.segments),
        "records": done.records,
        "archives": [str(path) for path in done.archives],
        "kept": done.kept,
    }
    text = f"{done.records} records of {len(done.segments)} segments in {archive}; {done.kept} segments stay"
    print_result(as_json, fields, text)


def _used_by(model_dir: Path) -> dict[str, Any]:
    """Return the ledger and the fingerprint of a solver."""
    summary = read_summary(model_dir)
    return {name: summary[name] for name in ("ledger", "fingerprint")}


@main.command("report")
@MODEL_DIR
@option("--out", default="report.html", show_default=True, type=Path, help="File to write.")
@option(
    "--stale-after-hours",
    default=24.0,
    show_default=True,
    type=FiniteRange(min=0.0),
    help="Hours without an update after which the page shows an alarm.",
)
@JSON
@exits
def report_page(model_dir: Path, out: Path, stale_after_hours: float, as_json: bool) -> None:
    """Write plots of the history of a model, or of the newest model in a warehouse, as one HTML file."""
    found = Warehouse(model_dir).newest()
    directory = model_dir if found is None else found[1]
    text = page(directory, time.time(), stale_after_hours * 3600.0)
    try:
        if out.exists() and not out.is_file():
            raise StorageError(f"{out} cannot be written: it is no regular file")
        # The file that a link names, such as /dev/stdout, is replaced, and the link stays.
        with atomic_write(os.path.realpath(out), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:  # its message would name the temporary file
        raise StorageError(f"{out} cannot be written: {error.strerror or error}") from error
    print_result(as_json, {"out": str(out), "model_dir": str(directory)}, f"history of {directory} in {out}")


@main.command("metrics")
@MODEL_DIR
@exits
def print_metrics(model_dir: Path) -> None:
    """Print metrics of a model, or of the newest model in a warehouse, in the text format of Prometheus."""
    found = Warehouse(model_dir).newest()
    click.echo(exposition(model_dir if found is None else found[1]), nl=False)


@log_group.command("convert")
@click.argument("source", type=Path)
@click.argument("target", type=Path)
@JSON
@exits
def log_convert(source: Path, target: Path, as_json: bool) -> None:
    """Convert a log to the raw form, or a file in the raw form to segments.

    A directory or a segment as SOURCE becomes a new file in the raw form; any other file becomes a directory of
    segments, which must be empty or new. Several rewards of a sample become one, their mean. Samples without a reward
    and damaged records are left out.
    """
    contents = read_log(source, max_damage=1.0)
    raw = source.is_dir() or source.suffix == SUFFIX
    if not raw and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LogError(f"{target} is not empty, so it could contain samples twice: choose another target")
    with write_samples(target, raw) as write:
        for info, reward in zip(contents.infos, contents.rewards, strict=True):
            write(info, reward)
    if contents.damaged_bytes:
        click.echo(f"{contents.damaged_bytes} damaged bytes were left out", err=True)
    fields = {"samples": len(contents.infos), "target": str(target), "damaged": contents.damaged_bytes}
    print_result(as_json, fields | {"pending": contents.pending}, f"{len(contents.infos)} samples written to {target}")


@main.group("config", cls=Commands)
def config_group() -> None:
    """Check and convert configurations."""


@config_group.command("check")
@click.argument("path", type=Path)
@JSON
@exits
def config_check(path: Path, as_json: bool) -> None:
    """Check whether a configuration is valid."""
    config = Config.load(path)
    print_result(as_json, {"path": str(path), "solver": config.solver.type.name}, f"{path} is a configuration")


@config_group.command("convert")
@click.argument("path", type=Path)
@JSON
@exits
def config_convert(path: Path, as_json: bool) -> None:
    """Print all settings of a configuration in the nested form."""
    text = Config.load(path).to_prototxt()
    print_result(as_json, {"prototxt": text}, text.removesuffix("\n"))


@main.group("secret", cls=Commands)
def secret_group() -> None:
    """Make and rotate the secrets of tokens."""


@secret_group.command("new")
@click.argument("path", type=Path)
@JSON
@exits
def secret_new(path: Path, as_json: bool) -> None:
    """Write a secret into a new file that only its owner can read."""
    create_secret(path)
    print_result(as_json, {"path": str(path)}, f"new secret in {path}")


@secret_group.command("rotate")
@click.argument("path", type=Path)
@option(
    "--keep",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of earlier secrets to keep, whose tokens are accepted.",
)
@JSON
@exits
def secret_rotate(path: Path, keep: int, as_json: bool) -> None:
    """Add a new secret as the first, which signs new tokens; processes read it when they start."""
    rotate_secret(path, keep=keep)
    print_result(as_json, {"path": str(path), "kept": keep}, f"new secret first in {path}")


def _print_update(as_json: bool, report: UpdateReport, contents: LogContents) -> None:
    if report.rolled_back:
        _warn(f"reverted to the trusted model: {report.rolled_back}")
    unread = sum(segment.unread for segment in contents.segments)
    if unread:
        _warn(f"{unread} bytes at the ends of segments are not whole records: not yet written, or cut off")
    log: dict[str, Any] = {
        "pending": contents.pending,
        "expired": contents.expired,
        "damaged": contents.damaged_bytes,
        "quarantined": [str(segment.moved or segment.path) for segment in contents.quarantined],
        "unreadable": [str(segment.path) for segment in contents.unreadable],
        "unread": unread,
    }
    text = (
        f"model {report.model_iter_id}: {report.used} samples ({report.pairs} pairs), "
        f"mean reward {report.mean_reward:.4g}, best {report.best_reward:.4g}; "
        f"stale {sum(report.stale.values())}, waiting {contents.pending}, set aside: {report.set_aside}"
    )
    print_result(as_json, report_fields(report) | log, text)


def _kept(segment: SegmentReport) -> str:
    try:
        return f"kept in {segment.save_damaged()}"
    except (OSError, LogError) as error:  # the new model exists, so this must not fail the command
        return f"which cannot be kept: {error}"


def _place(segment: SegmentReport) -> str:
    return f"moved to {segment.moved}" if segment.moved else "stays, because it is still written or cannot be moved"


def _warn(text: str) -> None:
    click.echo(text, err=True)


def _newest(warehouse: Path, config_path: Path, model: str | None) -> ESAgent:
    found = Warehouse(warehouse).newest()
    directory = warehouse / "model_dir_0" if found is None else found[1]
    if found is None:
        first = built_in(model or "cartpole")
        if first is None:
            raise EvolutionError(f"{warehouse} is empty: put the initial weights of your model into {directory}")
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
