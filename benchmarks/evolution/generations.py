"""Time and memory of generations of OpenAI-ES, including the first one, compared with the peers."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import timing
from peers import TABLE, evosax_generation, evotorch_generation, noise_table_generation, our_generation, our_settings
from timing import Table, in_turns

HERE = Path(__file__).parent
POPULATIONS = (64, 256, 1024)
TABLE_TARGETS = {10**3: "1.0", 10**4: "0.6", 10**5: "0.26", 10**6: "0.14"}
COMPUTED_TARGETS = {10**4: "0.6", 10**5: "0.25", 10**6: "0.24"}


def generations(table: Table, quick: bool) -> None:
    """Measure with a noise table, compared with the peer that has one; candidates one at a time and in one array."""
    for batch in (False, True):
        for n, target in TABLE_TARGETS.items():
            for population in POPULATIONS:
                if quick and n * population > 3e6:
                    continue
                found = in_turns(
                    {
                        "ours": our_generation(n, population, cached=True, batch=batch),
                        "noise table": noise_table_generation(n, population, 10**6 if quick else TABLE, batch=batch),
                    },
                    seconds=2.0 if n * population > 3e7 else 0.6,
                )
                ours = found.pop("ours")
                peers = {name: 1e3 * seconds for name, seconds in found.items()}
                how = "in one array" if batch else "one at a time"
                what = f"generation, table, {how}, d={n:.0e}, population {population}"
                table.row(what, "ms", 1e3 * ours, peers, f"<= {target}")


def computed(table: Table, quick: bool) -> None:
    """Measure without a table, compared with peers that draw normals."""
    for n, target in COMPUTED_TARGETS.items():
        for population in POPULATIONS:
            if n * population > (3e6 if quick else 3e8):
                continue
            calls = {"ours": our_generation(n, population, cached=False, batch=False)}
            for name, make in (("evosax", evosax_generation), ("evotorch", evotorch_generation)):
                try:
                    calls[name] = make(n, population)
                except ImportError:
                    print(f"({name} is not installed)", file=sys.stderr)
            found = in_turns(calls, seconds=3.0 if n * population > 3e7 else 0.8)
            ours = found.pop("ours")
            peers = {name: 1e3 * seconds for name, seconds in found.items()}
            table.row(
                f"generation, no table, d={n:.0e}, population {population}", "ms", 1e3 * ours, peers, f"<= {target}"
            )


def first(table: Table, quick: bool) -> None:
    """Measure setup and first generation in a fresh process, after the imports."""
    programs = {
        "ours": "from peers import our_generation as make; import parl_evokit.openai_es; arguments = (True,)",
        "evosax": "from peers import evosax_generation as make; import evosax.algorithms; arguments = ()",
        "evotorch": "from peers import evotorch_generation as make; import evotorch.algorithms; arguments = ()",
        "noise table": "from peers import noise_table_generation as make; import numpy; arguments = ()",
    }
    for n in (10**4,) if quick else (10**4, 10**6):
        found = {}
        for name, imports in programs.items():
            program = (
                f"import time, numpy.random; {imports}; clock = time.{timing.clock.__name__}; t = clock(); "
                f"make({n}, 64, *arguments)(); print(clock() - t)"
            )
            runs = [
                subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=HERE)
                for _ in range(3)
            ]
            if all(run.returncode == 0 for run in runs):
                found[name] = 1e3 * min(float(run.stdout.split()[-1]) for run in runs)
        ours = found.pop("ours")
        table.row(f"first generation, d={n:.0e}, population 64", "ms", ours, found, "<= 50 ms (10^6), <= 10 (10^4)")


def memory(table: Table, quick: bool) -> None:
    """Measure the peak of allocated memory from the first array on, including the table."""
    for population in (64,) if quick else (64, 1024):
        program = f"import generations; generations.peak({population})"
        peak = float(subprocess.check_output([sys.executable, "-c", program], cwd=HERE))
        table.row(f"peak memory, d=10^6, population {population}", "MB", peak, None, "<= 30 MB")


def peak(population: int) -> None:
    """Print the peak in MB; run in a separate process."""
    from parl_evokit import ES

    tracemalloc.start()
    es = ES(np.zeros(10**6, np.float32), our_settings(True))
    out = np.empty(10**6, np.float32)
    for _ in range(2):
        infos = es.ask(population)
        for info in infos:
            es.candidate(info, out)
        es.tell(infos, list(range(population)))
    print(tracemalloc.get_traced_memory()[1] / 1e6)
