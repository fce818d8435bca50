"""Latencies of an online service: `add_noise()`, the noise itself, exact sums, and the import."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
from peers import our_settings
from timing import Table, in_turns, percentiles

from parl_evokit import CounterKeys, ESAgent, GaussianNoise, NoiseSpec, NumpyModel
from parl_evokit.noise import ExactSum

SIZES = (142, 10**4, 10**6)


def add_noise(table: Table, quick: bool) -> None:
    """Measure `add_noise()` (median and 99th percentile) on a numpy model, and on a torch module if there is torch."""
    kinds = ["numpy"]
    try:
        import torch

        kinds.append("torch")
    except ImportError:
        pass
    targets = {True: ("6", "10", "200"), False: ("10", "30", "2200")}
    for cached in (True, False):
        for n, target in zip(SIZES[:2] if quick else SIZES, targets[cached], strict=False):
            for kind in kinds:
                model = (
                    torch.nn.Linear(n, 1, bias=False)
                    if kind == "torch"
                    else NumpyModel({"w": np.zeros(n, np.float32)}, lambda _, x: x)
                )
                clone = ESAgent(our_settings(cached), model).clone()
                median, slow = percentiles(clone.add_noise)
                name = f"add_noise(), {'table' if cached else 'computed'}, {kind}, d={n}: p50 / p99"
                table.row(name, "us", (1e6 * median, 1e6 * slow), None, f"<= {target} us")


def rates(table: Table, quick: bool) -> None:
    """Measure nanoseconds per normal number and per term of an exact sum."""
    n = 10**5 if quick else 10**6
    zeros, out = np.zeros(n, np.float32), np.empty(n, np.float32)
    computed, cached = GaussianNoise(NoiseSpec(1024)), GaussianNoise(NoiseSpec(1024, cached=True))
    generator = np.random.default_rng(0)
    calls = {
        "ours": lambda: computed.units(12, 0, n),
        "numpy": lambda: generator.standard_normal(n, np.float32),
        "perturb": lambda: computed.perturb(zeros, 12, 0.1, out),
        "table": lambda: cached.perturb(zeros, 12, 0.1, out),
    }
    try:
        import torch

        tensor = torch.empty(n)
        calls["torch"] = tensor.normal_
    except ImportError:
        pass
    found = {name: 1e9 * seconds / n for name, seconds in in_turns(calls, seconds=1.0).items()}
    peers: dict[str, float] = {name: found[name] for name in ("torch", "numpy") if name in found}
    table.row("noise without a table, exact", "ns a normal", found["ours"], peers, "<= 1.8 ns")
    table.row("the same, added to parameters", "ns a parameter", found["perturb"])
    table.row("noise from the table, added to parameters", "ns a parameter", found["table"])


def sums(table: Table, quick: bool) -> None:
    """Measure the exact sum of 64 samples without pairs, compared with `a * x + y` in float32."""
    n, k = (10**5 if quick else 10**6), 64
    source = CounterKeys(1, mirrored=False)
    keys, weights = [source.draw() for _ in range(k)], 2 * np.arange(k) - k + 1
    big, total, scratch = np.zeros(n + k, np.float32), np.zeros(n, np.float32), np.empty(n, np.float32)

    def axpy() -> None:
        for i, weight in enumerate(weights.astype(np.float32)):
            np.multiply(big[i : i + n], weight, out=scratch)
            np.add(total, scratch, out=total)

    def exact(noise: GaussianNoise) -> None:
        ExactSum(noise, keys, weights).part(0, n)

    calls: dict[str, Callable[[], object]] = {
        "table": partial(exact, GaussianNoise(NoiseSpec(1024, cached=True))),
        "computed": partial(exact, GaussianNoise(NoiseSpec(1024))),
        "axpy": axpy,
    }
    found = {name: 1e9 * seconds / n / k for name, seconds in in_turns(calls, seconds=2.0).items()}
    table.row("exact weighted sum, table", "ns a term", found["table"], {"float32 a*x+y": found["axpy"]}, "<= 0.9")
    table.row("exact weighted sum, computed", "ns a term", found["computed"])


def imports(table: Table, quick: bool) -> None:
    """Measure the processor time of the import in a fresh process, beyond that of numpy."""

    def seconds(statement: str) -> float:
        program = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
        runs = 3 if quick else 5
        return min(float(subprocess.check_output([sys.executable, "-P", "-c", program])) for _ in range(runs))

    base = seconds("import numpy")
    peers = {}
    used = {"cmaes": "cmaes", "cma": "cma", "evosax": "evosax.algorithms", "evotorch": "evotorch.algorithms"}
    for name, module in used.items():
        try:
            peers[name] = 1e3 * (seconds(f"import numpy, {module}") - base)
        except subprocess.CalledProcessError:
            continue
    ours = 1e3 * (seconds("import numpy; from parl_evokit import ES, ESAgent, SamplingInfo") - base)
    table.row("import ES, ESAgent, SamplingInfo above numpy", "ms", ours, peers, "<= 50 ms")
