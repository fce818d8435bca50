"""Random faults, one at a time, drawn with weights from a seeded generator."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

from programs import Program

from parl_remote.testing import Conditions, Direction, LoopbackCluster, Member

ONE_WAY_OR_BOTH = (Direction.IN, Direction.OUT, Direction.BOTH)


class Chaos:
    """Draws and injects faults.

    Args:
        cluster: The cluster; its first node is never killed, so that its memory can be observed for the whole run.
        programs: The programs that use it or have private clusters; only the last one may be killed.
        seed: Seed of the generator.
        stopping: Event that ends waits between a fault and its repair.
    """

    def __init__(self, cluster: LoopbackCluster, programs: list[Program], seed: int, stopping: threading.Event) -> None:
        self.counts: Counter[str] = Counter()
        self.kill_masters = True
        self._cluster = cluster
        self._programs = programs
        self._dice = random.Random(seed)
        self._stopping = stopping
        self._faults: dict[Callable[[], str], int] = {
            self._kill_actor: 30,
            self._kill_private_actor: 12,
            self._kill_zygote: 5,
            self._kill_private_zygote: 4,
            self._kill_node: 6,
            self._kill_program: 6,
            self._kill_master: 2,
            self._pause_actor: 8,
            self._pause_node: 4,
            self._pause_program: 2,
            self._cut: 8,
            self._reset: 5,
            self._bad_line: 6,
        }

    def strike(self) -> str:
        """Inject one fault, repair it if it does not recover by itself, and return its description."""
        fault = self._dice.choices(list(self._faults), list(self._faults.values()))[0]
        try:
            said = fault()
        except (ProcessLookupError, IndexError, StopIteration):
            return ""  # no target at present
        self.counts[fault.__name__.strip("_").replace("_", " ")] += 1
        return said

    def _some_node(self) -> Member:
        return self._dice.choice(list(self._cluster.nodes.values()))

    def _some_mortal_node(self) -> Member:
        return self._dice.choice(list(self._cluster.nodes.values())[1:])

    def _kill_actor(self) -> str:
        actor = self._dice.choice([actor for node in self._cluster.nodes.values() for actor in node.actors])
        actor.kill()
        return f"killed {actor.pid}"

    def _kill_private_actor(self) -> str:
        program = self._dice.choice([one for one in self._programs if one.private])
        actor = self._dice.choice([one for one in program.process.family if one.name == "parl:Worker"])
        actor.kill()
        return f"killed {actor.pid}"

    def _kill_zygote(self) -> str:
        zygote = self._some_node().zygote
        zygote.kill()
        return f"killed {zygote.pid}"

    def _kill_private_zygote(self) -> str:
        program = self._dice.choice([one for one in self._programs if one.private])
        zygote = next(one for one in program.process.family if one.name == "parl:zygote")
        zygote.kill()
        return f"killed {zygote.pid}"

    def _kill_node(self) -> str:
        node = self._some_mortal_node()
        node.kill()
        self._stopping.wait(self._dice.uniform(0, 3))
        self._cluster.start_node(node)
        return node.name

    def _kill_program(self) -> str:
        program = self._programs[-1]
        program.kill()
        program.start()
        return f"killed {program.name}"

    def _kill_master(self) -> str:
        if not self.kill_masters:
            return self._kill_actor()
        self._cluster.master.kill()
        self._stopping.wait(self._dice.uniform(0, 4))
        self._cluster.restart_master()
        return "killed and started again"

    def _pause_actor(self) -> str:
        actor = self._dice.choice([actor for node in self._cluster.nodes.values() for actor in node.actors])
        seconds = self._dice.uniform(0.2, 12)
        with actor.being_paused():
            self._stopping.wait(seconds)
        return f"{actor.pid} for {seconds:.1f} s"

    def _pause_node(self) -> str:
        node, seconds = self._some_node(), self._dice.uniform(0.2, 12)
        with node.process.being_paused():
            self._stopping.wait(seconds)
        return f"{node.name} for {seconds:.1f} s"

    def _pause_program(self) -> str:
        program, seconds = self._dice.choice(self._programs), self._dice.uniform(0.2, 8)
        with program.process.being_paused():
            self._stopping.wait(seconds)
        return f"{program.name} for {seconds:.1f} s"

    def _cut(self) -> str:
        member = self._dice.choice([*self._cluster.nodes.values(), self._cluster.master])
        way, seconds = self._dice.choice(ONE_WAY_OR_BOTH), self._dice.uniform(0.2, 12)
        member.cut(way)
        self._stopping.wait(seconds)
        member.restore()
        return f"{member.name} {way.name} for {seconds:.1f} s"

    def _reset(self) -> str:
        member = self._dice.choice([*self._cluster.nodes.values(), self._cluster.master])
        member.reset()
        return member.name

    def _bad_line(self) -> str:
        member, seconds = self._dice.choice(list(self._cluster.nodes.values())), self._dice.uniform(2, 10)
        member.set(Conditions(delay_s=0.05, jitter_s=0.05, loss=0.05))
        self._stopping.wait(seconds)
        member.set(Conditions())
        return f"{member.name} for {seconds:.1f} s"
