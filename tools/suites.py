"""Run the suites of `hatch run test`, `hatch run test:all` and `hatch run base:test`.

    python tools/suites.py all ARGUMENTS     all suites through hatch, then a line for each; fails if any of them fails
    python tools/suites.py base ARGUMENTS    one suite, with this Python

Arguments go to pytest. Paths among them replace the suite's paths and run in one process; `--lf` does the same with the
files of failed tests. Tests marked `slow` are skipped, unless `--slow` selects them, a test is named as `file::test`,
or `--lf` repeats a failed one. Those marked `long` as well, which `--slow` leaves out, are selected by `-m long`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_ON_BOTH = ("packages/parl-remote/tests/test_tensors.py", "tests/both")
SUITES = {
    "base": ("packages/parl-core/tests", "packages/parl-remote/tests", "packages/parl-evokit/tests", "tests/base"),
    "torch": ("packages/parl-torch/tests", *_ON_BOTH, "tests/on_torch"),
    "paddle": ("packages/parl-paddle/tests", *_ON_BOTH, "tests/on_paddle"),
    "install": ("tests/install",),
}
# Its tests share wheels and environments, which take longer to make than to use, so they run in one process.
OPTIONS = {"install": ("-n", "0", "-o", "timeout=900", "-o", "pythonpath=../tests ../tests/install")}
MOST_WORKERS = 8
_PASSED, _NOTHING_CHOSEN = 0, 5  # exit codes of pytest
# A word after one of these options is not a path to run.
_WITH_VALUE = {
    *("-c", "-k", "-m", "-n", "-o", "-p", "-W"),
    *("--config-file", "--override-ini", "--rootdir", "--confcutdir", "--basetemp", "--import-mode"),
    *("--ignore", "--ignore-glob", "--deselect", "--numprocesses", "--pythonwarnings"),
    *("--junitxml", "--junit-xml", "--junitprefix", "--junit-prefix", "--log-file"),
}
_LAST_FAILED = {"--lf", "--last-failed"}
_NAMES_A_FILE = re.compile(r"/|\.py(::|$)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def one(suite: str, arguments: list[str]) -> int:
    """Run one suite with this Python, and return pytest's exit code."""
    slow = "--slow" in arguments
    arguments = [argument for argument in arguments if argument != "--slow"]
    behind = zip(arguments, ["", *arguments], strict=False)
    words = [word for word, option in behind if option not in _WITH_VALUE and not word.startswith("-")]
    paths = [word for word in words if _is_path(word)]
    if missing := [word for word in words if word not in paths and _NAMES_A_FILE.search(word)]:
        sys.exit(f"no such file or folder: {', '.join(missing)}")
    again = bool(_LAST_FAILED & {*arguments})
    all_that_failed = again and not paths
    if all_that_failed:
        if not (paths := _failed_files(suite)):
            print(f"{suite}: no test failed the last time")
            return _PASSED
        arguments = [*arguments, *paths]
    command = [sys.executable, "-m", "pytest", "-c", "tools/pytest.ini", "--rootdir", "."]
    command += ["-o", f"cache_dir={_cache(suite)}", *OPTIONS.get(suite, ())]
    if again:
        command += ["--last-failed-no-failures", "none"]
    marked = any(argument.startswith("-m") for argument in arguments)
    if not (all_that_failed or marked or any("::" in path for path in paths)):
        command += ["-m", "slow and not long" if slow else "not slow"]
    if not paths:
        command += ["--durations", "20", *SUITES[suite]]
    in_workers = any(argument.startswith(("-n", "--numprocesses")) for argument in arguments)
    if not (paths or in_workers or "-n" in command):
        # Tests sometimes wait, so there are two workers more than cores.
        command += ["-n", str(min((os.cpu_count() or 1) + 2, MOST_WORKERS))]
        in_workers = True
    if in_workers:
        command += ["--dist", "loadfile"]  # all tests of a file run in one worker, which shares its clusters and models
        # Workers compute with one thread each, because several threads per worker would wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Tests start thousands of processes, each of which would compile our sources again if the system forbids bytecode
    # files.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode


def _cache(suite: str) -> Path:
    return ROOT / ".pytest_cache" / suite


def _failed_files(suite: str) -> list[str]:
    """Return the sorted files with tests that failed in their last run."""
    try:
        failed = json.loads((_cache(suite) / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted({path for path in (name.partition("::")[0] for name in failed) if _is_path(path)})


def _is_path(word: str) -> bool:
    return bool(word) and (ROOT / word.partition("::")[0]).exists()


def every(arguments: list[str]) -> int:
    """Run all suites, even after failures, and return 0 if all of them passed.

    With arguments, some suites may select no tests, but not all of them.
    """
    if shutil.which("hatch") is None:
        sys.exit("each suite runs in an environment of hatch, but hatch is not on the PATH: pip install hatch")
    fine = {_PASSED, _NOTHING_CHOSEN} if arguments else {_PASSED}
    results = {suite: _through_hatch(suite, arguments) for suite in SUITES}
    print()
    for suite, (code, last) in results.items():
        print(f"{suite:8} {'passed' if code in fine else 'FAILED':7} {last}")
    codes = {code for code, _ in results.values()}
    if codes == {_NOTHING_CHOSEN}:
        print(f"no suite has a test that these arguments select: {' '.join(arguments)}")
    return int(codes == {_NOTHING_CHOSEN} or not codes <= fine)


def _through_hatch(suite: str, arguments: list[str]) -> tuple[int, str]:
    """Run a suite in its environment and show its output; return its exit code and last line."""
    last = ""
    command = ["hatch", "run", f"{suite}:test", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            last = _COLOUR.sub("", line).strip("= \n") or last
    return running.returncode, last


def main(suite: str, *arguments: str) -> int:
    """Run the command line."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # background jobs of a shell ignore SIGINT, and so would tests
    return every(list(arguments)) if suite == "all" else one(suite, list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
