"""`xparl doctor`: diagnosis of a host and a cluster, with remedies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from parl_remote._config import Environment, environment
from parl_remote._doctor.cluster import check_cluster
from parl_remote._doctor.here import Finding, Severity, check_here, imports_of, note, problem
from parl_remote._doctor.reach import check_reach, why
from parl_remote._system.terminal import visible
from parl_remote._transport.addresses import Address
from parl_remote.cli._session import Target, address_option, key_option, port_option, targets
from parl_remote.errors import RemoteError

__all__ = ["doctor_command"]

_REACH_S = 3.0
_MARKS = {Severity.FINE: "ok  ", Severity.NOTE: "note", Severity.PROBLEM: "FAIL"}
_COLOURS = {Severity.FINE: "green", Severity.NOTE: "yellow", Severity.PROBLEM: "red"}


@click.command("doctor")
@address_option
@port_option
@key_option
@click.option("--module", multiple=True, metavar="NAME", help="A module that workers must have; may be repeated.")
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A program or notebook whose imports workers must have; it is read, not run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(
    address: str | None,
    port: int | None,
    key_file: Path | None,
    module: tuple[str, ...],
    script: Path | None,
    as_json: bool,
) -> None:
    r"""Find out what is wrong with this host and a cluster, and how to mend it.

    It looks at this host (disk, limits, keys, leftovers), at the way to the master, at key, versions and clocks, at
    free CPUs and who has them, and at each worker: whether it can be reached where it says that it is, from here and
    from the master, and whether it has the modules that a program needs. It changes nothing.

    The exit status is 0 if nothing is wrong, 1 if something is; notes do not count.

    \b
    Examples:
      xparl doctor                                         this host and your clusters on it
      xparl doctor --address first:8037                    a cluster elsewhere, as seen from here
      xparl doctor --address first:8037 --module torch     is torch there on every worker?
      xparl doctor --port 8037 --script train.py --json
    """
    found = environment()
    modules = list(module)
    try:
        if script is not None:
            modules += [name for name in imports_of(script) if name not in modules]
    except (OSError, SyntaxError, ValueError) as error:
        raise click.ClickException(f"cannot read the imports of {script}: {error}") from error
    wanted = targets(found, port, address, key_file)
    report: list[tuple[str, list[Finding]]] = [("this host", _shown("this host", check_here(found), as_json))]
    for target in wanted:
        title = f"the cluster at {target.address}"
        report.append((target.address, _shown(title, _look_at(target, found, modules), as_json)))
    if not wanted:
        nothing = note(
            "cluster",
            f"there is no cluster of yours {f'on port {port} of' if port else 'on'} this host to look at",
            "name one with --address host:port, or start one: xparl start --port 8037",
        )
        report.append(("cluster", _shown("clusters", [nothing], as_json)))
    _end(report, as_json)


def _look_at(target: Target, found: Environment, modules: Sequence[str]) -> Iterator[Finding]:
    reach = check_reach(Address.parse(target.address), found, _REACH_S)
    yield reach
    if reach.severity is Severity.FINE:
        try:
            cluster = target.cluster(found)
        except RemoteError as error:
            yield why(error, target.address, found) or problem("key", str(error), "")
            return
        yield from check_cluster(cluster, found, modules)


def _shown(title: str, findings: Sequence[Finding] | Iterator[Finding], as_json: bool) -> list[Finding]:
    """Return the findings, printing each as soon as it is available."""
    kept = []
    if not as_json:
        click.echo(click.style(title, bold=True))
    for finding in findings:
        kept.append(finding)
        if not as_json:
            mark = click.style(_MARKS[finding.severity], fg=_COLOURS[finding.severity])
            click.echo(f"  {mark}  {visible(finding.what)}")
            if finding.remedy:
                click.echo(f"        -> {visible(finding.remedy)}")
    return kept


def _end(report: Sequence[tuple[str, Sequence[Finding]]], as_json: bool) -> None:
    problems = sum(finding.severity is Severity.PROBLEM for _, findings in report for finding in findings)
    if as_json:
        places = [{"place": place, "findings": [one.as_json() for one in findings]} for place, findings in report]
        click.echo(json.dumps({"ok": not problems, "problems": problems, "places": places}, indent=2))
    elif problems:
        click.echo(f"{problems} problem{'s' * (problems != 1)} found.")
    else:
        click.echo("Nothing is wrong.")
    sys.exit(1 if problems else 0)
