"""The rows of the table, with their names, units and targets."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A limit for ours; a comparison counts as met if the peer has no value.

    Attributes:
        limit: The maximum (of times and sizes) or minimum (of rates) of ours.
        of_pipe: Maximum ratio of ours to the pipe.
        over_ray: Minimum ratio by which ours must be better than Ray.
    """

    limit: float | None = None
    of_pipe: float | None = None
    over_ray: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        key: Its name in measurements.
        text: Its name in the table.
        unit: Unit of the values.
        more_is_better: True for rates.
        target: The target, or None.
    """

    key: str
    text: str
    unit: str
    target: Target | None = None
    more_is_better: bool = False

    def gain(self, ours: float, theirs: float) -> float:
        """Return the ratio by which ours is better."""
        if self.more_is_better:
            return ours / theirs if theirs else float("inf")
        return theirs / ours if ours else float("inf")

    def is_met(self, values: Mapping[str, float]) -> bool | None:
        """Return whether ours meets the target; None without a target or a value."""
        target, ours = self.target, values.get("parl")
        if target is None or ours is None:
            return None
        met = True
        if target.limit is not None:
            met = ours >= target.limit if self.more_is_better else ours <= target.limit
        if target.of_pipe is not None and "pipe" in values:
            met = met and ours <= target.of_pipe * values["pipe"]
        if target.over_ray is not None and "ray" in values:
            met = met and self.gain(ours, values["ray"]) >= target.over_ray
        return met

    def aim(self) -> str:
        """Return a description of the target."""
        if self.target is None:
            return ""
        sign = ">=" if self.more_is_better else "<="
        parts = []
        if self.target.limit is not None:
            parts.append(f"{sign} {self.target.limit:g}")
        if self.target.of_pipe is not None:
            parts.append(f"<= {self.target.of_pipe:g}x pipe")
        if self.target.over_ray is not None:
            parts.append(f"{self.target.over_ray:g}x better than Ray")
        return ", ".join(parts)


def _rate(key: str, text: str, unit: str, least: float | None = None, over_ray: float | None = None) -> Row:
    target = None if least is None else Target(least, over_ray=over_ray)
    return Row(key, text, unit, target, more_is_better=True)


ROWS = (
    Row("call", "blocking empty call, p50", "us", Target(of_pipe=1.3)),
    Row("call_p99", "the same, p99", "us", Target(100)),
    Row("call_small", "the same with a small dictionary there and back, p50", "us", Target(of_pipe=1.4)),
    Row("call_arrays", "the same with a dictionary of eight arrays of 256 bytes as argument, p50", "us"),
    _rate("flight_1", "calls in flight, 1 actor", "k/s", 110, 23),
    _rate("flight_8", "calls in flight, 8 actors", "k/s", 100, 20),
    _rate("argument_1_warm", "1 MB array as argument, warm", "GB/s", 3),
    _rate("result_1_warm", "1 MB array as result, warm", "GB/s", 3),
    _rate("argument_10_warm", "10 MB array as argument, warm", "GB/s", 6),
    _rate("result_10_warm", "10 MB array as result, warm", "GB/s", 6),
    _rate("argument_100_warm", "100 MB array as argument, warm", "GB/s", 8),
    _rate("result_100_warm", "100 MB array as result, warm", "GB/s", 8),
    _rate("argument_1_cold", "1 MB array as argument, first one", "GB/s"),
    _rate("result_1_cold", "1 MB array as result, first one", "GB/s"),
    _rate("argument_10_cold", "10 MB array as argument, first one", "GB/s"),
    _rate("result_10_cold", "10 MB array as result, first one", "GB/s"),
    _rate("argument_100_cold", "100 MB array as argument, first one", "GB/s", 1.5),
    _rate("result_100_cold", "100 MB array as result, first one", "GB/s", 1.5),
    _rate("argument_64_arrays", "64 arrays of 1 MB as argument, warm", "GB/s", 3),
    _rate("result_64_arrays", "64 arrays of 1 MB as result, warm", "GB/s", 3),
    _rate("argument_200_arrays", "200 arrays of 150 KB as argument, warm", "GB/s", 3),
    _rate("result_200_arrays", "200 arrays of 150 KB as result, warm", "GB/s", 3),
    _rate("threads_apart", "calls of two threads to an actor each, against one thread", "times", 1),
    _rate("threads_together", "calls of two threads to the same actor, against one thread", "times", 1),
    Row("weights", "10 MB of weights to 8 actors", "ms"),
    Row("weights_stored", "the same, stored once (put)", "ms", Target(6)),
    _rate("trajectories", "trajectories (dictionaries of 54 arrays, 28 KB a sample)", "k samples/s", 80),
    Row("start", "private cluster to the first answer", "s", Target(0.2)),
    Row("start_32", "the same with 32 slots", "s", Target(0.3)),
    Row("one_more", "one more actor answers", "ms", Target(8)),
    Row("actors_32", "32 actors answer", "s", Target(0.25)),
    Row("actors_32_again", "32 actors answer, the second time", "s", Target(0.25)),
    Row("slot_free", "one of 32 actors is dropped, the next one answers", "ms", Target(15)),
    Row("memory", "memory of one actor (PSS)", "MB", Target(6)),
    Row("thousand_memory", "1,000 idle actors: memory of one (PSS)", "MB", Target(6)),
    Row("thousand_cpu", "1,000 idle actors: CPU time of everything, driver included", "% of one core"),
    Row("thousand_round", "1,000 idle actors: one call of each", "ms"),
    Row("given_back", "100 MB there and back: memory is given back after", "s", Target(60)),
    Row("idle_processes", "idle, 8 slots, driver included: processes", "", Target(4)),
    Row("idle_memory", "idle, 8 slots, driver included: memory (PSS)", "MB", Target(70)),
    Row("orphans_idle", "driver killed: its idle actors are gone", "s", Target(0.1)),
    Row("orphans_busy", "driver killed: its actors within a call are gone", "s", Target(0.1)),
    Row("error", "actor killed: error at the caller", "ms", Target(10)),
    Row("replacement", "actor killed: a replacement answers", "s", Target(0.05)),
    Row("counting_serial", "five times counting (to 1e8 unless a note says otherwise), one after the other", "s"),
    Row("counting_threads", "the same in five threads of one process (no peer needed)", "s"),
    Row("counting_remote", "the same in five actors, their making included", "s"),
    Row("counting", "the five actors against serial", "", Target(0.55)),
    Row("import", "import, above numpy's", "ms", Target(60)),
)

# The rows of each measurement.
ROWS_OF = {
    "blocking_calls": ("call", "call_p99", "call_small", "call_arrays"),
    "calls_in_flight": ("flight_1", "flight_8"),
    "arrays": tuple(row.key for row in ROWS if row.key.endswith(("_cold", "_warm"))),
    "many_arrays": tuple(row.key for row in ROWS if row.key.endswith("_arrays") and row.unit == "GB/s"),
    "two_threads": ("threads_apart", "threads_together"),
    "weights_to_8_actors": ("weights", "weights_stored"),
    "trajectories": ("trajectories",),
    "start": ("start",),
    "start_with_32_slots": ("start_32",),
    "one_more_actor": ("one_more",),
    "thirty_two_actors": ("actors_32", "actors_32_again"),
    "slot_free_again": ("slot_free",),
    "memory_of_an_actor": ("memory",),
    "thousand_idle_actors": ("thousand_memory", "thousand_cpu", "thousand_round"),
    "memory_given_back": ("given_back",),
    "idle": ("idle_processes", "idle_memory"),
    "driver_killed": ("orphans_idle", "orphans_busy"),
    "actor_killed": ("error", "replacement"),
    "counting": ("counting_serial", "counting_threads", "counting_remote", "counting"),
    "import_cost": ("import",),
}
