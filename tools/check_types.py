"""Types of what is not a package: mypy --strict over tools and examples, plain mypy over tests and benchmarks.

    python tools/check_types.py [FOLDER ...]    these folders and what is below them; all without any

Each folder is a program of its own, whose modules import each other by their bare names (`import tasks`), and is
checked by a run of mypy with that folder on the path. The packages themselves are checked by `hatch run check`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STRICT = ("tools", "examples")
PLAIN = ("benchmarks/*", "packages/*/tests", "tests")
CHECKED_WITH_THE_PACKAGES = ("tests/conformance", "tests/faults")
# Folders of other programs that a program puts on its path.
ALSO_ON_THE_PATH = {
    "benchmarks/impala": ("benchmarks/remote", "benchmarks/remote/peers", "benchmarks/learner"),
    "benchmarks/sample_efficiency": ("benchmarks/evolution", "benchmarks/learning"),
    "tests/base": ("examples/prosthetics", "examples/evolution/service", "tools"),
}


def folders(roots: tuple[str, ...]) -> Iterator[str]:
    """Yield the uppermost folders that have modules, at or below these."""
    for root in roots:
        tops: list[Path] = []
        modules = (path for top in sorted(ROOT.glob(root)) for path in (top.rglob("*.py") if top.is_dir() else [top]))
        modules = (path for path in modules if path.suffix == ".py")
        for folder in sorted({path.parent if path.parent.name != "benchmarks" else path for path in modules}):
            if not any(folder.is_relative_to(top) for top in tops):
                tops.append(folder)
        yield from (str(top.relative_to(ROOT)) for top in tops)


def check(folder: str, *, strict: bool) -> bool:
    """Run mypy over a folder; return whether it found nothing."""
    config = "mypy.ini" if strict else "mypy_plain.ini"
    paths = [folder, *ALSO_ON_THE_PATH.get(folder, ()), "tests"]
    paths += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("packages/*/src"))]
    # The options of a run are part of its cache: two configurations in one would begin anew each time.
    command = [sys.executable, "-m", "mypy", "--config-file", f"tools/{config}", "--no-error-summary"]
    command += ["--cache-dir", f".mypy_cache/{Path(config).stem}", folder]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(paths)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main(only: list[str]) -> int:
    jobs = [(folder, True) for folder in folders(STRICT)] + [(folder, False) for folder in folders(PLAIN)]
    jobs = [job for job in jobs if job[0] not in CHECKED_WITH_THE_PACKAGES]
    if only:
        jobs = [(folder, strict) for folder, strict in jobs if any(Path(folder).is_relative_to(one) for one in only)]
        if not jobs:
            sys.exit(f"no modules in {', '.join(only)}")
    passed = [check(folder, strict=strict) for folder, strict in jobs]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main([str(Path(name)) for name in sys.argv[1:]]))
