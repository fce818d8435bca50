"""Updates and steps per CPU second compared with PARL 2.2.1 and BenchMARL, in turns, each in a separate process.

    python benchmarks/teams/speed.py --parl221 parl-env/bin/python --benchmarl marl-env/bin/python

README.md describes the interpreters. The best of all rounds counts; each library has one thread.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = Path(__file__).parent
CASES = {
    "update_maddpg": ("MADDPG, updates of all agents/s", 5),
    "update_qmix": ("QMIX with a GRU, updates/s", 3),
    "update_mappo": ("MAPPO, gradient steps/s", 10),
    "collect": ("acting by MADDPG in mpe2, steps/s", 200),
}


class Contender:
    """A process that is prepared for a case.

    Attributes:
        lacks: True if the library has no such algorithm.
    """

    def __init__(self, python: str, program: str, case: str) -> None:
        command = [python, str(HERE / program), case]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)  # the other PARL has the same name as ours
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.lacks = self._answer() != "ready"

    def seconds(self, count: int) -> float:
        """Return the seconds of a number of runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        """Return the last word of its answer, ignoring output of its library."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word = line.strip()
            if word in ("ready", "lacks") or word.replace(".", "").replace("e-", "").isdigit():
                return word
        raise SystemExit(f"{self._process.args!r} has ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def rates(case: str, contenders: dict[str, tuple[str, str]], rounds: int) -> dict[str, float]:
    """Return the runs per second of each contender that has the case."""
    count = CASES[case][1]
    best: dict[str, float] = {}
    running = {name: Contender(python, program, case) for name, (python, program) in contenders.items()}
    running = {name: contender for name, contender in running.items() if not contender.lacks}
    for contender in running.values():
        contender.seconds(count)
    for _ in range(rounds):
        for name, contender in running.items():
            best[name] = min(best.get(name, float("inf")), contender.seconds(count))
    for contender in running.values():
        contender.__exit__(None, None, None)
    return {name: count / seconds for name, seconds in best.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parl221", help="interpreter with PARL 2.2.1")
    parser.add_argument("--benchmarl", help="interpreter with BenchMARL")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    contenders = {"ours": (sys.executable, "speed_ours.py")}
    if given.parl221:
        contenders["PARL 2.2.1"] = (given.parl221, "speed_parl2.py")
    if given.benchmarl:
        contenders["BenchMARL"] = (given.benchmarl, "speed_benchmarl.py")
    others = list(contenders)[1:]
    print("| | " + " | ".join(contenders) + " | " + " | ".join(f"ours / {name}" for name in others) + " |")
    print("| --- |" + " --- |" * (len(contenders) + len(others)))
    for case in given.cases:
        found = rates(case, contenders, given.rounds)
        figures = [f"{found[name]:,.1f}" if name in found else "" for name in contenders]
        ratios = [f"**{found['ours'] / found[name]:.2f}**" if name in found else "" for name in others]
        print(f"| {CASES[case][0]} | " + " | ".join(figures + ratios) + " |", flush=True)
