"""The lessons of the course that need a framework, as scripts on this one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from parl_core import backends

COURSE = Path(__file__).parents[2] / "examples" / "course"
BACKEND = backends.current().name
SECONDS_TO_RUN = 250  # far more than any takes; a busy machine is slow
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PICTURES = {
    "lesson_3_dqn": {"3-learning-curve.png", "3-values.png"},
    "lesson_4_policy_gradient": {"4-gradient-noise.png", "4-learning-curves.png"},
    "lesson_5_ddpg": {"5-critic.png", "5-learning-curve.png"},
}


@pytest.mark.parametrize("lesson", PICTURES)
def test_a_lesson_runs_and_its_algorithm_is_the_ready_made_one(lesson: str, tmp_path: Path) -> None:
    command = [sys.executable, str(COURSE / f"{lesson}.py"), "--smoke", "--pictures", "shown", "--backend", BACKEND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_TO_RUN)
    assert done.returncode == 0, done.stderr
    pictures = list((tmp_path / "shown").iterdir())
    assert {path.name for path in pictures} == PICTURES[lesson]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    (apart,) = re.findall(r"weights of the two differ by at most (\S+)", done.stdout)
    assert float(apart) <= 1e-5
    assert list(tmp_path.iterdir()) == [tmp_path / "shown"]
