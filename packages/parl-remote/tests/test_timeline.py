"""`xparl timeline`: calls of actors are recorded on request, and cost nothing otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from click.testing import CliRunner

from faults.ports import unused_port
from parl_remote._actor import reports
from parl_remote._actor.host import ActorHost
from parl_remote._actor.reports import CallMeter, SharedCallMeter
from parl_remote._messages import Done
from parl_remote._messages.overview import ClusterEvent, EventKind
from parl_remote._messages.parts import CallSpan, ReadCalls, RecordCalls, RecordedCalls
from parl_remote._worker.actors import CallRecorder
from parl_remote.cli._recordings import ActorCalls, timeline_command, trace_of
from parl_remote.errors import ChannelClosed

PATIENCE_S = 60.0


def call(host: ActorHost, method: str, error: Exception | None = None) -> None:
    began = host.meter.began()
    host.meter.runs(method)
    if error is None:
        host.meter.ended(began)
    else:
        host.meter.failed(began, error)


def lines(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_an_actor_is_told_nothing_where_nothing_can_be_recorded_any_more(tmp_path: Path) -> None:
    channel, link = Mock(), Mock()
    actor = SimpleNamespace(number=1, pid=2, stats="")
    assigned = SimpleNamespace(class_name="Counter", actor_name="")
    lease: Any = SimpleNamespace(lease_id="one", assigned=assigned, actor=actor, channel=channel)
    recorder = CallRecorder(tmp_path, lambda: [lease])
    recorder.received(link, RecordCalls(1, 5e-324), [])
    channel.send.assert_not_called()
    recorder.received(link, RecordCalls(2, PATIENCE_S), [])
    channel.send.assert_called_once()


def test_calls_are_recorded_until_the_time_is_up_and_then_the_usual_meter_is_back(tmp_path: Path) -> None:
    host, path = ActorHost(), tmp_path / "times"
    usual = host.meter
    assert type(usual) is CallMeter
    call(host, "before")
    reports.begin_recording(host, str(path), time.perf_counter() + PATIENCE_S)
    call(host, "step")
    call(host, "fail", ValueError("no"))
    meter = host.meter
    assert isinstance(meter, reports.RecordingMeter)
    meter.until = 0.0
    call(host, "after")
    assert host.meter is usual
    assert [(line[0], line[3]) for line in lines(path)] == [("step", ""), ("fail", "ValueError")]
    assert all(float(line[1]) <= float(line[2]) for line in lines(path))
    assert usual._numbers[1] == 4, "all of them are counted as ever"


def test_a_recording_begins_anew_where_no_call_has_ended_since_the_last_one(tmp_path: Path) -> None:
    host = ActorHost()
    usual = host.meter
    reports.begin_recording(host, str(tmp_path / "first"), time.perf_counter() + PATIENCE_S)
    call(host, "one")
    meter = host.meter
    assert isinstance(meter, reports.RecordingMeter)
    meter.until = 0.0
    reports.begin_recording(host, str(tmp_path / "second"), time.perf_counter() + PATIENCE_S)
    call(host, "two")
    assert [[line[0] for line in lines(tmp_path / name)] for name in ("first", "second")] == [["one"], ["two"]]
    assert isinstance(host.meter, reports.RecordingMeter)
    host.meter.until = 0.0
    call(host, "three")
    assert host.meter is usual


def test_names_with_tabs_and_lines_that_are_not_whole_are_no_end_of_a_node(tmp_path: Path) -> None:
    host, link = ActorHost(), Mock()
    assigned = SimpleNamespace(class_name="Counter", actor_name="")
    actor = SimpleNamespace(number=1, pid=2, stats=tmp_path / "none")
    lease: Any = SimpleNamespace(lease_id="one", assigned=assigned, actor=actor, channel=Mock())
    recorder = CallRecorder(tmp_path, lambda: [lease])
    recorder.received(link, RecordCalls(1, PATIENCE_S), [])
    path = tmp_path / "a1.times"
    reports.begin_recording(host, str(path), time.perf_counter() + PATIENCE_S)
    call(host, "step\t1", type("A\tB\n", (Exception,), {})())
    with path.open("a") as file:
        file.write("step\t1.0\t")  # the disk was full here
        file.write("step\t1.0\t2.0\t\n")
    call(host, "step")
    recorder.received(link, ReadCalls(2, 0, 0), [])
    calls = link.tell.call_args.args[0].calls
    assert [(one.method, one.error) for one in calls] == [("'step\\t1'", "'A\\tB\\n'"), ("step", "")]


def test_a_call_that_runs_when_the_recording_begins_or_ends_is_counted_once(tmp_path: Path) -> None:
    host, path = ActorHost(), tmp_path / "times"
    usual = host.meter
    began = host.meter.began()
    host.meter.runs("long")
    reports.begin_recording(host, str(path), time.perf_counter() + PATIENCE_S)
    host.meter.ended(began)
    assert lines(path)[0][0] == "long"
    second, meter = host.meter.began(), host.meter
    assert isinstance(meter, reports.RecordingMeter)
    meter.runs("longer")
    meter.until = 0.0
    call(host, "other")
    meter.ended(second)
    call(host, "last")
    assert host.meter is usual
    assert usual._numbers[1] == 4
    assert [line[0] for line in lines(path)] == ["long"]


def test_an_actor_whose_calls_run_at_a_time_goes_on_recording(tmp_path: Path) -> None:
    host, path = ActorHost(), tmp_path / "times"
    reports.begin_recording(host, str(path), time.perf_counter() + PATIENCE_S)
    host.meter = host.meter.shared()
    one = host.meter.began()
    host.meter.runs("first")
    two = host.meter.began()
    host.meter.runs("second")
    host.meter.ended(one)
    host.meter.ended(two)
    assert [line[0] for line in lines(path)] == ["first", "second"]
    meter = host.meter
    assert isinstance(meter, reports.RecordingMeter)
    meter.until = 0.0
    call(host, "last")
    assert type(host.meter) is SharedCallMeter


def test_a_second_recording_prolongs_the_first(tmp_path: Path) -> None:
    host, path = ActorHost(), tmp_path / "times"
    reports.begin_recording(host, str(path), time.perf_counter() + PATIENCE_S)
    first = host.meter
    reports.begin_recording(host, str(path), time.perf_counter() + 2 * PATIENCE_S)
    assert host.meter is first
    call(host, "step")
    assert len(lines(path)) == 1


def test_a_call_that_ends_with_the_recording_writes_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = ActorHost()
    reports.begin_recording(host, str(tmp_path / "times"), time.perf_counter() + PATIENCE_S)
    host.meter = host.meter.shared()
    meter, write = host.meter, os.write
    assert isinstance(meter, reports.RecordingMeter)
    other = threading.Thread(target=call, args=(host, "last"))

    def slow_write(file: int, line: bytes) -> int:
        monkeypatch.undo()
        meter.until = 0.0
        other.start()
        other.join(0.2)  # it ends the recording as soon as it can
        return write(file, line)

    monkeypatch.setattr(os, "write", slow_write)
    call(host, "step")
    other.join(PATIENCE_S)
    assert [line[0] for line in lines(tmp_path / "times")] == ["step"]


def test_calls_that_overlap_lie_in_lanes_of_their_own() -> None:
    calls = (
        CallSpan("a", 10.0, 14.0),
        CallSpan("b", 11.0, 12.0),
        CallSpan("c", 12.5, 13.0, "ValueError"),
        CallSpan("d", 9.0, 10.5),
        CallSpan("e", 14.5, 15.0, runs=True),
    )
    event = ClusterEvent(1, 12.0, EventKind.NODE_LOST, "gone")
    trace = trace_of([ActorCalls("Worker", "here:1", "lease-0123456789", 7, calls)], [event], 10.0, 15.0)
    rows = {row["name"]: row for row in trace["traceEvents"] if row["ph"] == "X"}
    assert {name: row["tid"] for name, row in rows.items()} == {"d": 1, "a": 2, "b": 1, "c": 1, "e": 1}
    assert (rows["a"]["ts"], rows["a"]["dur"]) == (0.0, 4e6)
    assert (rows["d"]["ts"], rows["d"]["dur"]) == (0.0, 0.5e6), "what began before the recording begins with it"
    assert rows["c"]["args"] == {"error": "ValueError"}
    assert rows["e"]["args"] == {"still runs": True}
    (instant,) = [row for row in trace["traceEvents"] if row["ph"] == "i"]
    assert (instant["name"], instant["ts"]) == ("node_lost", 2e6)
    json.dumps(trace)


def test_a_node_that_is_lost_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(name: str, lost_at: type[Any] | None) -> Any:
        def ask(make: Any, kind: Any, _: float) -> Any:
            if kind is lost_at:
                raise ChannelClosed("it was lost")
            span = CallSpan("step", time.time(), time.time())
            return RecordedCalls(1, 1, f"lease-{name}", name, "", 7, (span,), -1) if kind is RecordedCalls else None

        connection = MagicMock(ask=ask)
        connection.__enter__.return_value = connection
        return connection

    reached = {f"{name}:1": worker(name, lost) for name, lost in (("a", Done), ("b", RecordedCalls), ("c", None))}
    session = Mock(worker=lambda addresses, _: reached[addresses[0]])
    session.master.ask.side_effect = ChannelClosed("the master, too")
    nodes = [SimpleNamespace(name="node", addresses=(address,)) for address in reached]
    monkeypatch.setattr("parl_remote.cli._recordings.open_session", Mock(return_value=nullcontext(session)))
    monkeypatch.setattr("parl_remote.cli._recordings.nodes_of", lambda _: nodes)
    output = tmp_path / "trace.json"
    done = CliRunner().invoke(timeline_command, ["--seconds", "0.1", "-o", str(output)])
    assert (done.exit_code, done.output.count("is left out: it was lost")) == (0, 2)
    assert "the record of events is left out: the master, too" in done.output
    rows = json.loads(output.read_text())["traceEvents"]
    assert [row["args"]["name"] for row in rows if row["name"] == "process_name"] == ["c c on node:1"]


def test_a_file_that_cannot_be_written_is_refused_before_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Mock()
    monkeypatch.setattr("parl_remote.cli._recordings.open_session", recorded)
    output = tmp_path / "missing" / "trace.json"
    done = CliRunner().invoke(timeline_command, ["-o", str(output)])
    assert (done.exit_code, done.output) == (1, f"Error: cannot write {output}: No such file or directory\n")
    recorded.assert_not_called()


PROGRAM = """
import asyncio, sys, time
import parl_remote as parl

@parl.remote_class(n_cpu=0)
class Worker:
    def step(self): time.sleep(0.01)
    def fail(self): raise ValueError("on purpose")
    def sleep(self): time.sleep(1000)

@parl.remote_class(n_cpu=0)
class Many:
    async def step(self): await asyncio.sleep(0.05)

parl.connect(sys.argv[1])
worker, many, sleeper = Worker.options(name="chief")(), Many(), Worker()
parl.submit(sleeper.sleep)
print("ready", flush=True)
made = []
while True:
    worker.step()
    try:
        worker.fail()
    except Exception:
        pass
    together = [parl.submit(many.step) for _ in range(3)]
    for future in together:
        future.result()
    made = [Worker()]
    made[0].step()
"""


@pytest.mark.slow
def test_a_cluster_s_calls_are_recorded_while_it_runs(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XDG_"))}
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**kept, "PARL_RUN_DIR": str(tmp_path / "run"), "PYTHONPATH": paths, "PARL_MONITOR": "0"}

    def xparl(*arguments: object) -> str:
        command = [sys.executable, "-m", "parl_remote.cli", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    port = unused_port()
    xparl("start", "--port", port, "--cpu_num", 1)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"localhost:{port}"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        output = tmp_path / "trace.json"
        assert "trace.json: " in xparl("timeline", "--seconds", 3, "-o", output)
        rows: list[dict[str, Any]] = json.loads(output.read_text())["traceEvents"]
        names = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
        calls = [row for row in rows if row["ph"] == "X"]

        def of(who: str) -> list[dict[str, Any]]:
            return [row for row in calls if names[row["pid"]].startswith(who)]

        chief = of("Worker chief")
        assert {row["name"] for row in chief} == {"step", "fail"}
        # The recording may begin and end within a call, which is then cut.
        whole = [row for row in chief if row["ts"] > 0 and "still runs" not in row.get("args", {})]
        assert {row["args"]["error"] for row in whole if row["name"] == "fail"} == {"ValueError"}
        assert all(row["dur"] >= 9_000 for row in whole if row["name"] == "step")
        assert {row["tid"] for row in of("Many")} == {1, 2, 3}, "three at a time have three lanes"
        assert any(row.get("args") == {"still runs": True} and row["name"] == "sleep" for row in calls)
        assert any(row["name"] == "__init__" for row in calls), "actors that were made meanwhile are recorded, too"
        assert all(0 <= row["ts"] <= 60e6 for row in calls)
    finally:
        program.send_signal(signal.SIGKILL)
        program.communicate()
        xparl("stop", "--port", port)
