"""The page about static graphs and the example that it names run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "paddle-static-graphs.md").read_text(), re.DOTALL
)


def run(folder: Path, *arguments: object) -> str:
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_of_the_page_runs(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    run(tmp_path, "program.py")
    assert (tmp_path / "model.ckpt").stat().st_size > 0


@pytest.mark.slow
def test_the_example_trains_saves_and_restores(tmp_path: Path) -> None:
    said = run(tmp_path, ROOT / "examples" / "paddle-static" / "train.py", "--smoke")
    assert re.search(r"Mean return of 5 test episodes: [\d.]+", said), said
    assert "(the same)" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert len((folder / "returns.csv").read_text().splitlines()) == 1 + 30
    for name in ("agent.ckpt", "learning-curve.png"):
        assert (folder / name).stat().st_size > 0


@pytest.mark.slow
def test_the_benchmark_measures_both_ways(tmp_path: Path) -> None:
    said = run(
        tmp_path, ROOT / "benchmarks" / "paddle_static" / "run.py", "--rounds", "1", "--cases", "policy_gradient"
    )
    rows = [line for line in said.splitlines() if line.startswith("| PolicyGradient, MLP")]
    assert len(rows) == 1, said
    assert all(float(cell.replace(",", "")) > 0 for cell in rows[0].strip("| ").split("|")[1:])
