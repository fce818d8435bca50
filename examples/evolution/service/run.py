"""The whole example in one program: the service, the offline job, and simulated visitors.

    pip install parl-evokit flask waitress matplotlib
    python run.py                  12000 visits, about a minute; writes curve.csv and curve.png into --out
    python run.py --smoke          a few hundred visits, to see that everything works
    python run.py --place shop     the same, and log, warehouse and configuration stay in a new folder

Service and offline job are separate processes, as in production; they share a log and a warehouse.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from visitors import Population

from parl_evokit.tokens import create_secret

HERE = Path(__file__).parent


def start(program: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start one of the programs beside this file, in a folder with the configuration."""
    command = [sys.executable, "-u", str(HERE / program), "--log", "log", *options]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def run(visits: int, models: int, every: float, folder: Path, block: int) -> list[tuple[int, float, int]]:
    """Simulate a number of visits, and more until the visitors have seen a number of models (for a minute at most).

    Returns, for each block of visits, the number of its last visit, the clicks per visit, and the newest model seen.
    """
    (folder / "config.prototxt").write_text((HERE / "config.prototxt").read_text())
    rows, clicks, newest = [], 0, 0
    with ExitStack() as stack:
        create_secret(folder / "secret")
        server = stack.enter_context(start("server.py", folder, "--secret", "secret", "--port", "0"))
        stack.callback(server.terminate)
        assert server.stdout is not None
        said = server.stdout.readline()
        port = re.search(r":(\d+)\s*$", said)
        if port is None:
            raise RuntimeError(f"the service did not start: {said!r}")
        updater = stack.enter_context(start("update.py", folder, "--every", str(every)))
        stack.callback(updater.terminate)
        population = Population(int(port[1]), delay=min(200, visits // 4))
        stack.callback(population.close)
        visit, last_call = 0, time.monotonic() + 60.0
        while visit < visits or (newest < models and time.monotonic() < last_call):
            visit += 1
            clicked, model = population.visit()
            clicks, newest = clicks + clicked, max(newest, model)
            if visit % block == 0 or (visit >= visits and newest >= models):
                count = visit % block or block
                rows.append((visit, clicks / count, newest))
                print(f"visits {visit:6d}   clicks a visit {clicks / count:.2f}   model {newest}", flush=True)
                clicks = 0
        population.tell()
        updater.terminate()
        assert updater.stdout is not None
        (folder / "update.log").write_text(updater.stdout.read())
    return rows


def draw(rows: list[tuple[int, float, int]], path: Path) -> None:
    """Draw clicks per visit over visits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    axes.plot([row[0] for row in rows], [row[1] for row in rows], marker="o", markersize=3)
    axes.set(
        xlabel="visits", ylabel="clicks a visit", title="A service that learns from delayed clicks while it serves"
    )
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="A ranking service that learns from delayed clicks while it serves.")
    parser.add_argument("--visits", type=int, default=12000)
    parser.add_argument("--models", type=int, default=0, help="continue until visitors have seen so many new models")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two updates")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--place", type=Path, help="a new folder in which log and warehouse are kept")
    parser.add_argument("--smoke", action="store_true", help="a few hundred visits only")
    arguments = parser.parse_args()
    if arguments.place is not None and arguments.place.exists():
        parser.error(f"{arguments.place} is there already: give a new folder")
    if arguments.smoke:
        arguments.visits, arguments.models, arguments.every = 400, 2, 0.2
    block = max(1, arguments.visits // 24)
    with ExitStack() as stack:
        folder = arguments.place or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        rows = run(arguments.visits, arguments.models, arguments.every, folder, block)
        print((folder / "update.log").read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "curve.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("visits", "clicks_a_visit", "model"), *rows])
    if not arguments.smoke:
        draw(rows, arguments.out / "curve.png")
    quarter = max(1, len(rows) // 4)
    first, last = (sum(row[1] for row in part) / quarter for part in (rows[:quarter], rows[-quarter:]))
    print(f"clicks a visit: {first:.2f} in the first quarter, {last:.2f} in the last; models: {rows[-1][2]}")


if __name__ == "__main__":
    main()
