"""The standard library's own tests of futures, waiters and executors pass against ours, see `stdlib_suites`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("stdlib_suites.py")
WANTED = ("test_asyncio/test_futures.py", "test_asyncio/test_tasks.py")
LEAST = 100  # tests that are run with any version; fewer means that the suite has been laid out anew


def has_suites(folder: Path) -> bool:
    """Return whether a `test` package has the suites."""
    futures = (folder / "test_concurrent_futures.py", folder / "test_concurrent_futures" / "__init__.py")
    return any(file.exists() for file in futures) and all((folder / file).exists() for file in WANTED)


def suites(scratch: Path) -> Path:
    """A directory for the path, whose `test` package has the suites; fails the test if there are none to be had.

    It is this installation's own, or the one in the directory that `PYTHON_TEST_SUITE` names (`Lib` of the
    interpreter's source distribution), or that of Debian's package of the same minor version.
    """
    own = Path(sysconfig.get_path("stdlib"))
    given = os.environ.get("PYTHON_TEST_SUITE")
    for place in [own, *([Path(given)] if given else [])]:
        if has_suites(place / "test"):
            return _merged(own, place, scratch)
    package = f"libpython3.{sys.version_info.minor}-testsuite"
    ran = subprocess.run(
        f"apt-get download {package} && dpkg-deb -x {package}*.deb unpacked", shell=True, cwd=scratch,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    place = scratch / "unpacked" / "usr" / "lib" / f"python3.{sys.version_info.minor}"
    if not has_suites(place / "test"):
        pytest.fail(
            f"the test package of Python 3.{sys.version_info.minor} has no test_concurrent_futures here, and Debian's "
            f"{package} could not be had: {ran.stderr.strip()}. Set PYTHON_TEST_SUITE to the Lib directory of the "
            "interpreter's source distribution."
        )
    return _merged(own, place, scratch)


def _merged(own: Path, place: Path, scratch: Path) -> Path:
    """A copy of the two, in which the interpreter's own files win: its `test.support` fits it."""
    merged = scratch / "merged"
    shutil.copytree(place / "test", merged / "test", dirs_exist_ok=True)
    shutil.copytree(own / "test", merged / "test", dirs_exist_ok=True)
    return merged


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_standard_librarys_own_tests_pass(tmp_path: Path) -> None:
    assert importlib.util.find_spec("test.support") is not None, "this Python has no test package at all"
    path = os.pathsep.join([str(suites(tmp_path)), os.environ.get("PYTHONPATH", "")])
    report = tmp_path / "report.json"
    ran = subprocess.run(
        [sys.executable, str(RUNNER), str(report)], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert report.exists(), ran.stdout + ran.stderr
    told = json.loads(report.read_text())
    summary = [f"{told['run']} run, {told['passed']} passed, {len(told['left out'])} left out:"]
    summary += [f"  {name}: {reason}" for name, reason in told["left out"].items()]
    sys.stdout.write("\n".join(summary) + "\n")
    assert (told["failed"], ran.returncode) == ([], 0), ran.stderr[-20_000:]
    assert told["passed"] + len(told["skipped"]) == told["run"]
    assert told["run"] >= LEAST
