"""The cost of an actor killed in the middle of a run: the time until its replacement acts, and the lost samples.

    hatch run torch:python benchmarks/impala/lost_actor.py --actors subprocess remote --kills 3

CartPole with two actors (`tasks.py`, `our_agent.py`). A callback kills one of them with SIGKILL and ends the run soon
after its replacement has played a fragment. Each environment writes its steps to a file, which shows the steps that the
killed actor had played but not sent.
"""

import argparse
import functools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also for actors, which get the program's path

import gymnasium
import numpy as np
import tasks
import torch
from our_agent import make_agent

from parl_core import training

BEFORE, AFTER = 50, 20  # updates before the kill, and after the first fragment of the replacement


class Noted(gymnasium.Wrapper):  # type: ignore[type-arg]
    """CartPole that writes its steps and the times of its construction and first fragment to `<pid>-<number>`."""

    _made = 0  # in this process

    def __init__(self, folder: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        path = Path(folder) / f"{os.getpid()}-{Noted._made}"
        Noted._made += 1
        # Seconds of the machine's clock when it was made; when its first fragment was played; steps.
        self._notes = np.memmap(path, np.float64, "w+", shape=(3,))
        self._notes[0] = time.monotonic()

    def step(self, action: Any) -> Any:
        """Step CartPole and count the step."""
        self._notes[2] += 1
        if self._notes[2] == tasks.STEPS:
            self._notes[1] = time.monotonic()
        return super().step(action)


class Killer(training.Callback):
    """Callback that kills an actor after some updates and records the time of each update."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.updates: list[float] = []
        self.killed = 0.0
        self.victim = ""
        self.lost = 0.0
        self._end: int | None = None

    def on_update(self, update: training.Update) -> str | None:
        """Count, kill, and end the run some updates after the replacement has played."""
        self.updates.append(time.monotonic())
        self.lost = update.metrics["actors/lost"]
        if len(self.updates) == BEFORE:
            self.victim = min(path.name for path in self._folder.iterdir()).partition("-")[0]
            self.killed = time.monotonic()
            os.kill(int(self.victim), signal.SIGKILL)
        if self._end is None and self.lost and self.acting_since() is not None:
            self._end = len(self.updates) + AFTER
        return "enough" if len(self.updates) == self._end else None

    def notes(self) -> dict[str, Any]:
        """Return the notes of each environment, by the name of its file."""
        found = {path.name: np.fromfile(path) for path in self._folder.iterdir()}
        return {name: note for name, note in found.items() if len(note) == 3}

    def made_at(self) -> float | None:
        """Return the times at which environments of the replacement were made."""
        return min((note[0] for note in self.notes().values() if note[0] > self.killed), default=None)

    def acting_since(self) -> float | None:
        """Return the time at which one of these had played its first fragment."""
        return min((note[1] for note in self.notes().values() if note[0] > self.killed and note[1]), default=None)


class Cost(NamedTuple):
    """The cost of one kill."""

    made_s: float
    """until the replacement had made its environments"""
    acting_s: float
    """until it had played its first fragment"""
    pause_s: float
    """the longest time between two updates around it"""
    usual_s: float
    """the median time between two updates before it"""
    lost_steps: int
    """played by the killed actor and never learned from"""
    steps: int
    """of the whole run"""


def kill_once(system: str) -> Cost:
    """Make one run with one kill, and return its cost."""
    options = {"processes": 2} if system == "subprocess" else {"cpu_num": 2, "preload": ["torch"]}
    settings = training.ActorLearnerSettings(
        total_steps=10**9,
        n_actors=tasks.N_ACTORS,
        envs_per_group=tasks.ENVS,
        n_steps=tasks.STEPS,
        batch_fragments=tasks.BATCH // (tasks.ENVS * tasks.STEPS),
        report_every=1,
    )
    make = functools.partial(make_agent, "cartpole")
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(Path(folder))
        with training.open_actors(system, **options) as actors:
            ended = training.train_actor_learner(
                make(), make, Noted, settings, actors=actors, env_kwargs={"folder": folder}, callbacks=[killer], seed=1
            )
        if killer.lost != 1:
            raise RuntimeError(f"{killer.lost:g} actors were lost, not the one that was killed")
        made, acting = killer.made_at(), killer.acting_since()
        notes = killer.notes()
    assert made is not None  # the run ends after that
    assert acting is not None
    played = sum(int(note[2]) for name, note in notes.items() if name.startswith(f"{killer.victim}-"))
    gaps = np.diff(killer.updates)
    return Cost(
        made_s=made - killer.killed,
        acting_s=acting - killer.killed,
        pause_s=float(gaps[BEFORE - 1 :].max()),
        usual_s=float(np.median(gaps[: BEFORE - 1])),
        lost_steps=played % (tasks.ENVS * tasks.STEPS),  # whole fragments have arrived, or are on their way
        steps=int(ended.step),
    )


def main() -> None:
    """Kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", nargs="+", default=["subprocess", "remote"], choices=["subprocess", "remote"])
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print("| actors | environments again after | first fragment after | learner's longest pause (usual) | steps lost |")
    print("| --- | --- | --- | --- | --- |")
    for system in arguments.actors:
        for _ in range(arguments.kills):
            cost = kill_once(system)
            pause = f"{cost.pause_s:.2f} s ({cost.usual_s:.3f} s)"
            lost = f"{cost.lost_steps} of {cost.steps:,} ({100 * cost.lost_steps / cost.steps:.2f} %)"
            print(f"| {system} | {cost.made_s:.2f} s | {cost.acting_s:.2f} s | {pause} | {lost} |", flush=True)


if __name__ == "__main__":
    main()
