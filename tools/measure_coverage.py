"""Measure the coverage of our packages by the suites, in every process that tests start: `hatch run cov`.

    python tools/measure_coverage.py run SUITE ARGUMENTS   one suite of tools/suites.py, added to earlier data
    python tools/measure_coverage.py report                the data since the last report, by package; then they are
    removed

Actors, nodes and workers are separate processes; each writes a file below `.coverage`, also if it exits by `os._exit`.
Killed processes write nothing, so lines that only they run count as missed.
"""

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tools" / "coverage.ini"
FOLDER = ROOT / ".coverage"  # ignored by git
LEAST_COVERED = 20  # number of modules in the report


def run(suite: str, arguments: list[str]) -> int:
    """Run a suite and return its exit code."""
    FOLDER.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "coverage", "run", "--rcfile", str(CONFIG), "tools/suites.py", suite, *arguments]
    environment = {**os.environ, "COVERAGE_FILE": str(FOLDER / suite)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def report() -> int:
    """Print the share of lines that ran, by package, and the modules with the lowest shares."""
    from coverage import Coverage

    measured = Coverage(data_file=str(FOLDER / "all"), config_file=str(CONFIG))
    measured.combine(sorted(map(str, FOLDER.iterdir())))
    lines: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    modules = []
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        if statements:
            name = path.relative_to(ROOT / "packages")
            lines[name.parts[0]][0] += len(statements)
            lines[name.parts[0]][1] += len(missing)
            modules.append((1.0 - len(missing) / len(statements), len(missing), name))
    lines["all"] = [sum(counts) for counts in zip(*lines.values(), strict=True)]
    print("| package | statements | missed | covered |\n| --- | --- | --- | --- |")
    for package, (statements_, missed) in lines.items():
        print(f"| {package} | {statements_} | {missed} | {100 * (1 - missed / max(statements_, 1)):.1f} % |")
    print(f"\nThe {LEAST_COVERED} modules with the lowest shares:")
    for share, missed, name in sorted(modules)[:LEAST_COVERED]:
        print(f"  {100 * share:5.1f} %  {missed:4} missed  {name}")
    shutil.rmtree(FOLDER)
    return 0


def main(action: str, *arguments: str) -> int:
    return run(arguments[0], list(arguments[1:])) if action == "run" else report()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
