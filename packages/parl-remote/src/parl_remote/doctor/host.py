"""What a node says of its host, looked at: its clock against ours, its disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parl_remote.doctor.finding import Finding, problem
from parl_remote.errors import RemoteError
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages.health import CheckHost, HostReport

__all__ = ["Heard", "check_clock", "check_disk", "report_of_host"]

_MIB = 2**20
_PATIENCE_S = 3.0
_CLOCKS_APART_S = 2.0  # less than this nobody notices in logs and curves
_LITTLE_DISK = 200 * _MIB


@dataclass(frozen=True, slots=True)
class Heard:
    """A node's report.

    Attributes:
        report: What it says.
        ahead_s: How far its clock is ahead of ours.
        error_s: By how much that may be wrong: half of the time that question and answer took.
    """

    report: HostReport
    ahead_s: float
    error_s: float


def report_of_host(node: Inquiry, modules: Sequence[str] = (), paths: Sequence[str] = ()) -> Heard | None:
    """Ask a node; None if it cannot answer that."""
    began = time.time()
    try:
        report = node.ask(lambda number: CheckHost(number, tuple(modules), tuple(paths)), HostReport, _PATIENCE_S)
    except RemoteError:
        return None
    ended = time.time()
    return Heard(report, report.time_s - (began + ended) / 2, (ended - began) / 2)


def check_clock(who: str, heard: Heard) -> Iterator[Finding]:
    """Whether a node's clock agrees with ours."""
    if abs(heard.ahead_s) - heard.error_s >= _CLOCKS_APART_S:
        direction = "ahead of" if heard.ahead_s > 0 else "behind"
        yield problem(
            "clock",
            f"the clock of {who} (on {heard.report.name}) is {abs(heard.ahead_s):.1f} s {direction} this host's",
            f"synchronise both hosts: timedatectl set-ntp true (or chronyc makestep), first on {heard.report.name}",
        )


def check_disk(who: str, report: HostReport) -> Iterator[Finding]:
    """Whether a node can write its logs and files."""
    remedy = f"make room in {report.disk} on {report.name}, or start its node with PARL_RUN_DIR on another disk"
    if report.disk_error:
        yield problem("disk", f"{who} (on {report.name}) cannot write to {report.disk}: {report.disk_error}", remedy)
    elif 0 <= report.disk_free < _LITTLE_DISK:
        free = f"{report.disk_free / _MIB:.0f} MiB"
        yield problem("disk", f"{who} (on {report.name}) has only {free} free in {report.disk}", remedy)
