"""`parl migrate`: what programs of PARL 1.x and 2.x have to change."""

import difflib
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from parl_core.atomic_write import atomic_write
from parl_core.migration import Program, read, report, rewrite

__all__ = ["migrate"]


@click.command()
@click.option("--write", is_flag=True, help="Change the files; otherwise show what would change as a diff.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, path_type=Path))
def migrate(files: tuple[Path, ...], write: bool) -> None:
    """Report the lines to change in programs of PARL 1.x and 2.x; --write makes the mechanical changes.

    FILE is a Python file, or a folder with some. Pass all files of a program together: whether environments need a
    CompatWrapper in the file that makes them depends on the file that steps them. Nothing is run.

    The exit status is 1 if changes remain to be made by hand.
    """
    programs = [_read(path) for path in _all(files)]
    findings = report(programs)
    for path, found in findings.items():
        for finding in found:
            click.echo(f"{path}:{finding.line}: {finding.message}")
    changed = rewrite(programs)
    for program in programs:
        new = changed.get(program.path)
        if new is not None and write:
            with atomic_write(program.path) as file:
                file.write(new.encode())
        elif new is not None:
            before, after = (text.splitlines(keepends=True) for text in (program.source, new))
            click.echo("".join(difflib.unified_diff(before, after, program.path, program.path)), nl=False)
    left = sum(not finding.mechanical for found in findings.values() for finding in found)
    changes = "changed" if write else "would change with --write"
    click.echo(f"{len(programs)} files: {len(changed)} {changes}, {left} lines to change by hand", err=True)
    sys.exit(1 if left else 0)


def _all(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files among paths and in the folders among them, each once."""
    found = (sorted(path.rglob("*.py")) if path.is_dir() else [path] for path in paths)
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _read(path: Path) -> Program:
    try:
        return read(str(path), path.read_bytes().decode())
    except (SyntaxError, ValueError) as error:  # the latter: not UTF-8, or a NUL byte
        raise click.ClickException(f"{path} is no Python 3 in UTF-8: {error}") from error
