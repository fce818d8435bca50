"""Measure all rows of `SPEED.md` on an idle machine, in less than half an hour.

    hatch run torch:python benchmarks/speed_table.py --python ray=ray-env/bin/python ...

Each row comes from the harness in its last column, with fewer rounds. The table goes to standard output, and with
`--write` also to `SPEED.md`; the output of the harnesses goes to standard error. Interpreters of the peers (each README
says how to make them):

    ray       Ray, and RLlib with torch and gymnasium          remote, impala
    parl221   PARL 2.2.1 for actors, and torch for IMPALA       remote, impala
    learner   torch, Stable-Baselines3, PARL 2.2.1             learner, end to end
    replay    Stable-Baselines3, cpprb                          replay

A peer without an interpreter has no figure. `--links` is the folder with links to our packages beside PARL 2.2.1,
`--parl2` the unpacked wheel of PARL 2.2.1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "SPEED.md"
_HEAD = "| | PARL | the other one | |"
Figures = Mapping[str, Mapping[str, float]]
"""Figures by row and peer."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        text: Description of the measurement.
        key: Key of the figures, and optionally of second figures, which follow the first after a semicolon.
        unit: Unit after the figures.
        ours: Our names in the figures, with their labels in the table.
        others: Names of the others in the figures, with their labels in the table.
        scale: Factor of the figures.
    """

    text: str
    key: str
    unit: str
    ours: Mapping[str, str]
    others: Mapping[str, str]
    scale: float = 1.0
    digits: int = 3
    key_too: str = ""

    def line(self, figures: Figures, link: str) -> str:
        """Return the row as Markdown."""
        ours = [f"{label}{self._value(figures, name)}" for name, label in self.ours.items()]
        others = [f"{label}: {self._value(figures, name)}" for name, label in self.others.items()]
        others = [other for other in others if other.strip("-; ").rpartition(":")[2]]
        return f"| {self.text} | {', '.join(ours)} {self.unit} | {'; '.join(others) or '-'} | {link} |"

    def _value(self, figures: Figures, name: str) -> str:
        found = [figures.get(key, {}).get(name) for key in (self.key, self.key_too) if key]
        return "; ".join("-" if value is None else self._number(value * self.scale) for value in found)

    def _number(self, value: float) -> str:
        if value >= 1000:
            return f"{value:,.0f}"
        return f"{float(f'{value:.{self.digits}g}'):g}"


PARL, RAY, OLD, PIPE = {"parl": ""}, {"ray": "Ray"}, {"parl221": "PARL 2.2.1"}, {"pipe": "a `multiprocessing.Pipe`"}
REMOTE = (
    Row("blocking call of a remote actor, median", "call", "us", PARL, {**RAY, **OLD, **PIPE}),
    Row("calls in flight, 8 actors", "flight_8", "a second", PARL, {**RAY, **OLD, **PIPE}, scale=1e3),
    Row("10 MB array as argument", "argument_10_warm", "GB/s", PARL, {**RAY, **OLD, **PIPE}),
    Row(
        "returning a 100 MB array, after warm-up; first time",
        "result_100_warm",
        "GB/s",
        PARL,
        {**RAY, **OLD, **PIPE},
        key_too="result_100_cold",
    ),
    Row("10 MB of weights to 8 actors that read them, stored once", "weights_stored", "ms", PARL, RAY),
    Row("trajectories of 54 arrays, 28 KB a sample", "trajectories", "k samples/s", PARL, {**RAY, **OLD, **PIPE}),
    Row("private cluster to the first answer", "start", "s", PARL, {**RAY, **OLD, **PIPE}),
    Row("32 actors answer", "actors_32", "s", PARL, {**RAY, **OLD, **PIPE}),
    Row("a slot of 32 is freed, the next actor answers", "slot_free", "ms", PARL, {**RAY, **OLD, **PIPE}),
)
_LEARNERS = {
    "SB3": "Stable-Baselines3",
    "PARL 2.2.1": "PARL 2.2.1",
    "by hand": "PyTorch by hand",
    "without autograd": "without autograd",
}
LEARNER = (
    Row("DQN, MLP 2x128, batch 64", "dqn", "updates/s", {"ours": "", "ours, compiled": "compiled "}, _LEARNERS),
    Row(
        "PPO, MLP 2x64, minibatches of 64",
        "ppo",
        "gradient steps/s",
        {"ours": "", "ours, compiled": "compiled "},
        _LEARNERS,
    ),
)
END_TO_END = (
    Row(
        "PPO on CartPole, acting and learning",
        "ppo_cartpole",
        "steps/s",
        {"ours": "", "ours, compiled": "compiled "},
        {"SB3": "Stable-Baselines3", "PARL 2.2.1": "PARL 2.2.1"},
    ),
)
IMPALA = (
    Row(
        "IMPALA, two actors, Nature CNN on 84x84x4 frames: steps sampled; trained on",
        "sampled",
        "steps/s",
        {"ours": "", "ours-bf16": "bfloat16 "},
        {"rllib": "RLlib", **OLD, "floor": "by hand"},
        key_too="trained",
    ),
    Row(
        "the same on CartPole, MLP 2x128",
        "sampled cartpole",
        "steps/s",
        {"ours": ""},
        {"rllib": "RLlib", **OLD, "floor": "by hand"},
        key_too="trained cartpole",
    ),
)
REPLAY = (
    Row(
        "replay memory, uniform batch of 256",
        "vector_sample",
        "batches/s",
        {"ours": "", "ours_reused": "into reused buffers "},
        {"sb3": "Stable-Baselines3", "cpprb": "cpprb", "parl2": "PARL 2.2.1"},
    ),
)


@dataclass(frozen=True)
class Harness:
    """A program that writes its figures to a file of JSON.

    Attributes:
        name: Its folder.
        page: Page that describes its results.
        rows: Its rows.
        arguments: Function that returns its command line without the interpreter, for the given interpreters.
        read: Function that converts its figures into those of the rows.
    """

    name: str
    page: str
    rows: tuple[Row, ...]
    arguments: Callable[[argparse.Namespace], list[str]]
    read: Callable[[dict[str, dict[str, dict[str, float]]]], Figures] = lambda found: found  # type: ignore[assignment,return-value]

    def figures(self, options: argparse.Namespace, limit_s: float) -> Figures:
        """Run it and return its figures; print the reason and return none if it fails or takes too long."""
        python = options.pythons.get(self.name, sys.executable)
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder, "figures.json")
            command = [python, str(HERE / self.name / "run.py"), "--json", str(written), *self.arguments(options)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            if self.name in ("learner", "end_to_end") and options.links:
                environment |= {"PYTHONPATH": str(options.links), "PARL_BACKEND": "torch"}
            print(" ".join(command), file=sys.stderr, flush=True)
            process = subprocess.Popen(command, env=environment, stdout=sys.stderr, start_new_session=True)
            try:
                process.wait(timeout=max(limit_s, 1.0))
            except subprocess.TimeoutExpired:
                print(f"{self.name} has no more time", file=sys.stderr)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if not written.exists():
                print(f"{self.name} wrote no figures; it ended with {process.returncode}", file=sys.stderr)
                return {}
            return self.read(json.loads(written.read_text()))


def _remote(options: argparse.Namespace) -> list[str]:
    peers = [peer for peer in ("ray", "parl221") if peer in options.pythons]
    pythons = [word for peer in peers for word in ("--python", f"{peer}={options.pythons[peer]}")]
    rows = "call", "flight_8", "arrays", "weights", "trajectories", "start", "actors_32", "slot_free"
    rounds = ["--rounds", "1", "--windows", "2" if options.smoke else "12"]
    return ["--peers", ",".join(["parl", "pipe", *peers]), *pythons, *rounds, "--only", *rows]


def _impala(options: argparse.Namespace) -> list[str]:
    names = {"ray": "rllib", "parl221": "parl221"}
    given = [f"{names[peer]}={options.pythons[peer]}" for peer in names if peer in options.pythons]
    rounds, *seconds = ["1", "1", "2"] if options.smoke else ["3", "3", "8"]  # single turns of 8 s differ by a tenth
    times = ["--rounds", rounds, "--warm-up", seconds[0], "--seconds", seconds[1]]
    return ["--tasks", "frames,cartpole", *times, *(word for one in given for word in ("--python", one))]


def _impala_figures(found: dict[str, dict[str, dict[str, float]]]) -> Figures:
    return {
        kind + ("" if task == "frames" else f" {task}"): {name: rates[kind] for name, rates in by_name.items()}
        for task, by_name in found.items()
        for kind in ("sampled", "trained")
    }


def _replay(options: argparse.Namespace) -> list[str]:
    wheel = ["--parl2", str(options.parl2)] if options.parl2 else []
    return ["--cases", "vector_sample", "--rounds", "1" if options.smoke else "3", *wheel]


HARNESSES = (
    Harness("remote", "remote/RESULTS.md", REMOTE, _remote),
    Harness(
        "learner",
        "learner/README.md",
        LEARNER,
        lambda options: ["--cases", "dqn,ppo", "--rounds", "3" if options.smoke else "60"],
    ),
    Harness(
        "end_to_end",
        "end_to_end/README.md",
        END_TO_END,
        lambda options: [
            "--tasks",
            "ppo_cartpole",
            "--best",
            "--scale",
            "0.3",
            "--rounds",
            "2" if options.smoke else "12",
        ],
    ),
    Harness("impala", "impala/README.md", IMPALA, _impala, _impala_figures),
    Harness("replay", "replay/README.md", REPLAY, _replay),
)


def with_table(page: str, lines: list[str]) -> str:
    """Return the page with this table in place of the old one."""
    before, _, rest = page.partition(_HEAD)
    return before + "\n".join(lines) + "\n\n" + rest.partition("\n\n")[2]


def main() -> None:
    """Measure, print, and optionally write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", action="append", default=[], metavar="NAME=PATH", help="interpreter of a peer; see above"
    )
    parser.add_argument("--links", type=Path, help="links to our packages, for the learner's interpreter")
    parser.add_argument("--parl2", type=Path, help="folder of the unpacked wheel of PARL 2.2.1, for the replay memory")
    parser.add_argument("--only", nargs="+", choices=[harness.name for harness in HARNESSES], help="harnesses to run")
    parser.add_argument("--minutes", type=float, default=30.0, help="time limit in minutes (default: 30)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}; only with all harnesses")
    parser.add_argument("--smoke", action="store_true", help="trial run with meaningless figures")
    options = parser.parse_args()
    if options.write and (options.only or options.smoke):
        parser.error("--write needs every row, measured in full: leave out --only and --smoke")
    options.pythons = dict(given.split("=", 1) for given in options.python)
    if "learner" in options.pythons:
        options.pythons["end_to_end"] = options.pythons["learner"]
    end = time.monotonic() + 60.0 * options.minutes
    before = os.getloadavg()[0]
    lines = [_HEAD, "| --- | --- | --- | --- |"]
    for harness in HARNESSES:
        if options.only and harness.name not in options.only:
            continue
        figures = harness.figures(options, end - time.monotonic())
        link = f"[{harness.name.replace('_', ' ')}]({harness.page})"
        lines += [row.line(figures, link) for row in harness.rows]
    print("\n".join(lines))
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(), lines))
    print(f"\nLoad average before: {before:.1f}; {len(os.sched_getaffinity(0))} cores.")


if __name__ == "__main__":
    main()
