"""How fast noise, sums, generations and the log are; beside what numpy does at best for the same work.

    python benchmarks/evolution/engine.py [--quick]

One thread, best of many runs; processor time of that thread, so that what else runs on the machine disturbs little (it
still shares caches and memory). `--wall` measures by the clock. Prints a table in Markdown.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from parl_evokit import (
    ES,
    CounterKeys,
    ESAgent,
    GaussianNoise,
    LogWriter,
    NoiseSpec,
    NumpyModel,
    SamplingInfo,
    read_log,
)
from parl_evokit.noise import ExactSum

clock = time.perf_counter if "--wall" in sys.argv else time.thread_time
TABLE, COMPUTED = NoiseSpec(1024, cached=True), NoiseSpec(1024)


def microseconds(call: Callable[[], object], seconds: float = 0.3) -> tuple[float, float, float]:
    """Best, median and 99th percentile."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = clock()
        call()
        times.append(1e6 * (clock() - start))
    times.sort()
    return times[0], times[len(times) // 2], times[int(0.99 * len(times))]


def row(name: str, unit: str, *values: float) -> None:
    print(f"| {name} | {' / '.join(f'{value:.3g}' for value in values)} {unit} |", flush=True)


def settings(cached: bool) -> dict[str, object]:
    return {
        "solver": {
            "optimizer": {"type": "ADAM", "base_lr": 0.01},
            "sampling": {"gaussian_sampling": {"std": 0.02, "cached": cached, "seed": 1024}},
        }
    }


def noise() -> None:
    n = 1_000_000
    zeros, out = np.zeros(n, np.float32), np.empty(n, np.float32)
    computed, table = GaussianNoise(COMPUTED), GaussianNoise(TABLE)
    generator = np.random.default_rng(0)

    def nanoseconds(call: Callable[[], object]) -> float:
        return 1e3 * microseconds(call)[0] / n

    row("normals, numpy float32 (ziggurat)", "ns/normal", nanoseconds(lambda: generator.standard_normal(n, np.float32)))
    row("noise without a table", "ns/normal", nanoseconds(lambda: computed.units(12, 0, n)))
    row("the same, added to parameters", "ns/parameter", nanoseconds(lambda: computed.perturb(zeros, 12, 0.1, out)))
    row("noise from the table, added", "ns/parameter", nanoseconds(lambda: table.perturb(zeros, 12, 0.1, out)))


def sums() -> None:
    n, k = 1_000_000, 64
    source = CounterKeys(1, mirrored=False)
    keys, weights = [source.draw() for _ in range(k)], 2 * np.arange(k) - k + 1
    big, total, scratch = np.zeros(n + k, np.float32), np.zeros(n, np.float32), np.empty(n, np.float32)

    def axpy() -> None:
        for i, weight in enumerate(weights.astype(np.float32)):
            np.multiply(big[i : i + n], weight, out=scratch)
            np.add(total, scratch, out=total)

    def exact(engine: GaussianNoise) -> None:
        ExactSum(engine, keys, weights).part(0, n)

    row("float32 a*x + y, numpy, 64 vectors of 10^6", "ns/element", microseconds(axpy)[0] / 1e3 / k)
    for name, spec in (("table", TABLE), ("computed", COMPUTED)):
        best = microseconds(partial(exact, GaussianNoise(spec)))[0]
        row(f"exact weighted sum, {name}, 64 samples of 10^6", "ns/element", best / 1e3 / k)


def sampling(sizes: list[int]) -> None:
    for cached in (True, False):
        for n in sizes:
            model = NumpyModel({"w": np.zeros(n, np.float32)}, lambda _, x: x)
            clone = ESAgent(settings(cached), model).clone()
            kind = "table" if cached else "computed"
            _, median, slow = microseconds(clone.add_noise)
            row(f"add_noise(), {kind}, {n} parameters: p50 / p99", "us", median, slow)


def generations(sizes: list[int], populations: list[int]) -> None:
    for cached in (True, False):
        for n in sizes:
            for population in populations:
                if n * population > (3e8 if cached else 7e7):
                    continue
                es = ES(np.zeros(n), settings(cached))
                rewards = np.random.default_rng(0).normal(size=population)
                batch = max(1, min(population, 10**6 // n))
                out = np.empty((batch, n), np.float32)

                best = microseconds(partial(generation, es, rewards, out))[0]
                kind = "table" if cached else "computed"
                row(f"generation, {kind}, {n} parameters, population {population}", "ms", best / 1e3)


def generation(es: ES, rewards: np.ndarray, out: np.ndarray) -> None:
    """Every candidate is materialised, a batch at a time; evaluation is left out."""
    infos = es.ask(len(rewards))
    for first in range(0, len(infos), len(out)):
        part = infos[first : first + len(out)]
        es.candidates(part, out[: len(part)])
    es.tell(infos, rewards)


def memory(population: int) -> None:
    """Peak above the library, from the first array on, in a process of its own (see `main`)."""
    tracemalloc.start()
    es = ES(np.zeros(10**6, np.float32), settings(True))
    out = np.empty(10**6, np.float32)
    for _ in range(2):
        infos = es.ask(population)
        for info in infos:
            es.candidate(info, out)
        es.tell(infos, list(range(population)))
    print(tracemalloc.get_traced_memory()[1] / 1e6)


def log(records: int) -> None:
    folder = tempfile.mkdtemp()
    infos = [SamplingInfo([2**30 + i, 2 * i], 3, 77) for i in range(records)]
    try:
        for every in (0, 100):
            with LogWriter(f"{folder}/{every}", fsync_every=every) as writer:
                start = clock()
                for info in infos:
                    writer.reward(info, 1.5)
                row(
                    f"log append, fsync every {every or 'never'}",
                    "us/record",
                    1e6 * (clock() - start) / records,
                )
        start = clock()
        contents = read_log(f"{folder}/0")
        row("log read", "us/record", 1e6 * (clock() - start) / records)
        row("log size", "bytes/record", sum(part.path.stat().st_size for part in contents.segments) / records)
    finally:
        shutil.rmtree(folder)


def imports() -> None:
    def seconds(statement: str) -> float:
        times = []
        for _ in range(5):
            program = f"import time; t = time.{clock.__name__}(); {statement}; print(time.{clock.__name__}() - t)"
            times.append(float(subprocess.check_output([sys.executable, "-c", program])))
        return min(times)

    row("import parl_evokit above import numpy", "ms", 1e3 * (seconds("import parl_evokit") - seconds("import numpy")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--wall", action="store_true", help="measure by the clock; for a quiet machine")
    parser.add_argument("--memory", type=int, help="measure one population's memory and end")
    arguments = parser.parse_args()
    if arguments.memory:
        memory(arguments.memory)
        return
    sizes = [142, 10_000] if arguments.quick else [142, 10**4, 10**6]
    print(f"| what (numpy {np.__version__}) | measured |\n| --- | --- |")
    imports()
    noise()
    sums()
    sampling(sizes)
    generations(
        [10**3, 10**4] if arguments.quick else [10**3, 10**4, 10**5, 10**6], [64] if arguments.quick else [64, 256]
    )
    for population in [64] if arguments.quick else [64, 1024]:
        peak = float(subprocess.check_output([sys.executable, __file__, "--memory", str(population)]))
        row(f"peak memory above the library, 10^6 parameters, population {population}", "MB", peak)
    log(10_000 if arguments.quick else 100_000)


if __name__ == "__main__":
    main()
