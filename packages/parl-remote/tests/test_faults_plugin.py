"""The fixtures for users: the page that explains them is run as it is written, and nothing is loaded unasked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "test-your-program.md"


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user would, in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(not PAGE.exists(), reason="the pages are not part of what was installed")
def test_the_page_s_examples_run(tmp_path: Path) -> None:
    files = re.findall(r'```python title="(\w+\.py)"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["conftest.py", "training.py", "test_training.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.slow
def test_the_plugin_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(parl_faults):\n    assert parl_faults.struck == []\n")
    assert pytest_in(tmp_path, "-p", "parl_remote.testing.plugin").returncode == 0
    without = pytest_in(tmp_path)
    assert without.returncode != 0
    assert "fixture 'parl_faults' not found" in without.stdout


@pytest.mark.slow
def test_a_test_that_leaves_an_actor_paused_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import os
import parl_remote as parl

@parl.remote_class
class Sleepy:
    def process(self):
        return os.getpid()

def test_first(parl_private, parl_faults):
    parl_private(cpu_num=1)
    sleepy = Sleepy()
    print("pid", sleepy.process())
    parl_faults.actor(sleepy).pause()
    assert False
"""
    )
    done = pytest_in(tmp_path, "-p", "parl_remote.testing.plugin")
    found = re.search(r"pid (\d+)", done.stdout)
    assert found is not None
    assert "1 failed" in done.stdout
    assert "error" not in done.stdout.lower().replace("assertionerror", "")
    assert not Path(f"/proc/{found[1]}").exists()


@pytest.mark.slow
def test_a_fault_that_cannot_be_had_skips_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from parl_remote.testing import FaultUnavailable

@pytest.fixture
def thing():
    raise FaultUnavailable("there is no such thing here")

def test_one(thing):
    pass

def test_two():
    raise FaultUnavailable("nor here")
"""
    )
    done = pytest_in(tmp_path, "-p", "parl_remote.testing.plugin", "-rs")
    assert "2 skipped" in done.stdout
    assert "there is no such thing here" in done.stdout


def test_nothing_is_loaded_unless_it_is_asked_for() -> None:
    program = """
import sys
import parl_remote, parl_remote.testing
loaded = [name for name in sys.modules if name.startswith("parl_remote.testing.") or name in ("pytest", "asyncio")]
assert loaded == [], loaded
from parl_remote.testing import Process
assert "pytest" not in sys.modules
assert sorted(parl_remote.testing.__all__) == parl_remote.testing.__all__
for name in parl_remote.testing.__all__:
    assert getattr(parl_remote.testing, name).__name__ == name
assert "pytest" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
