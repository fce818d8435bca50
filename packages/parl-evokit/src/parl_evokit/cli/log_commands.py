"""`evokit log`: show, verify and convert logs."""

import json
from pathlib import Path

import click

from parl_evokit.cli.options import DAMAGED, JSON, Commands, exits, print_result
from parl_evokit.errors import LogError
from parl_evokit.log import read_log
from parl_evokit.log.writer import SUFFIX
from parl_evokit.online import write_samples

__all__ = ["log_group"]

PATHS = click.argument("paths", nargs=-1, required=True, type=Path)


@click.group("log", cls=Commands)
def log_group() -> None:
    """Look into logs."""


@log_group.command("show")
@PATHS
@JSON
@exits
def log_show(paths: tuple[Path, ...], as_json: bool) -> None:
    """Print each sample with its reward, one JSON object a line; with --json all in one object."""
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
        click.echo(json.dumps({"samples": samples, "pending": contents.pending, "damaged": contents.damaged_bytes}))
        return
    for sample in samples:
        click.echo(json.dumps(sample))


@log_group.command("verify")
@PATHS
@JSON
@exits
def log_verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Count good records and damaged bytes of each segment; exit with 4 where something is damaged."""
    contents = read_log(paths, max_damage=1.0)
    segments = [
        {
            "path": str(segment.path),
            "segment": segment.segment,
            "records": segment.records,
            "damage": segment.damage,
            "damaged": segment.damaged_bytes,
            "unread": segment.unread,
        }
        for segment in contents.segments
    ]
    lines = [
        f"{segment.path}: {segment.records} records, {segment.damaged_bytes} bytes damaged in "
        f"{len(segment.damage)} places, {segment.unread} bytes unfinished at the end"
        for segment in contents.segments
    ]
    print_result(as_json, {"segments": segments, "pending": contents.pending}, "\n".join(lines) or "no segments")
    if contents.damaged_bytes:
        raise click.exceptions.Exit(DAMAGED)


@log_group.command("convert")
@click.argument("source", type=Path)
@click.argument("target", type=Path)
@JSON
@exits
def log_convert(source: Path, target: Path, as_json: bool) -> None:
    """Write the samples of a log in the documents' form, or those of such a file as segments.

    The form of SOURCE decides: a directory or a segment becomes a file in the documents' form, anything else a
    directory of segments, which must be empty or new. Several rewards of a sample become one, their mean; samples
    without reward are left out, and damaged ones.
    """
    contents = read_log(source, max_damage=1.0)
    raw = source.is_dir() or source.suffix == SUFFIX
    if raw and target.is_dir():
        raise LogError(f"{target} is a directory; the documents' form is a file")
    if not raw and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LogError(f"{target} holds something already: its samples would be there twice")
    with write_samples(target, raw) as write:
        for info, reward in zip(contents.infos, contents.rewards, strict=True):
            write(info, reward)
    if contents.damaged_bytes:
        click.echo(f"{contents.damaged_bytes} damaged bytes were left out", err=True)
    fields = {"samples": len(contents.infos), "target": str(target), "damaged": contents.damaged_bytes}
    print_result(as_json, fields | {"pending": contents.pending}, f"{len(contents.infos)} samples written to {target}")
