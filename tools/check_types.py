"""Check types outside of packages: mypy --strict for tools and examples, plain mypy for tests and benchmarks.

    python tools/check_types.py [FOLDER ...]    these folders with their subfolders; default: all

Each folder is a program whose modules import each other by their bare names (`import tasks`). In a run of mypy a name
is one module: a run checks folders whose modules have different names, with those on its path whose modules import each
other; modules of other folders are named from the root (`examples.dqn.train`). `hatch run check` checks the packages
themselves.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
STRICT = ("tools", "examples")
PLAIN = ("benchmarks/*", "packages/*/tests", "tests")
CHECKED_WITH_THE_PACKAGES = ("tests/conformance", "tests/faults")
# Folders of other programs that a program adds to its path.
ALSO_ON_THE_PATH = {
    "benchmarks/impala": ("benchmarks/remote", "benchmarks/remote/peers", "benchmarks/learner"),
    "benchmarks/sample_efficiency": ("benchmarks/evolution", "benchmarks/learning"),
    "tests/base": ("examples/prosthetics", "examples/evolution/service", "tools"),
}


def folders(roots: tuple[str, ...]) -> Iterator[str]:
    """Yield the topmost folders with modules, at or below these."""
    for root in roots:
        tops: list[Path] = []
        modules = (path for top in sorted(ROOT.glob(root)) for path in (top.rglob("*.py") if top.is_dir() else [top]))
        modules = (path for path in modules if path.suffix == ".py")
        for folder in sorted({path.parent if path.parent.name != "benchmarks" else path for path in modules}):
            if not any(folder.is_relative_to(top) for top in tops):
                tops.append(folder)
        yield from (str(top.relative_to(ROOT)) for top in tops)


def modules_of(folder: str) -> dict[str, Path]:
    """Return the files of a folder by their names, relative to it and without a suffix: `{"peers/ours": ...}`."""
    return {path.relative_to(ROOT / folder).with_suffix("").as_posix(): path for path in (ROOT / folder).rglob("*.py")}


def path_of(folder: str) -> tuple[str, ...]:
    """Return the folders that must be on the path for the imports between a folder's modules, if there are any."""
    own = modules_of(folder)
    tops = {name.partition("/")[0] for name in own}
    imported: set[str] = set()
    for path in own.values():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    others = ALSO_ON_THE_PATH.get(folder, ())
    # mypy names modules below a folder such as `parl-core`, which is no valid name, from that folder in any case.
    bare = not tops.isdisjoint(imported) or not all(part.isidentifier() for part in Path(folder).with_suffix("").parts)
    return (folder, *others) if bare else others


@dataclass
class Run:
    """A run of mypy.

    Attributes:
        folders: The folders that it checks.
        path: The folders in which it finds modules by their bare names.
        files: The files of these names.
    """

    folders: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)

    def passes(self, *, strict: bool) -> bool:
        """Run mypy, and return whether it found no errors."""
        config = "mypy.ini" if strict else "mypy_plain.ini"
        sources = [str(source.relative_to(ROOT)) for source in sorted(ROOT.glob("packages/*/src"))]
        # The options of a run are part of its cache: two configurations with one cache would start from scratch each
        # time.
        command = [sys.executable, "-m", "mypy", "--config-file", f"tools/{config}", "--no-error-summary"]
        command += ["--cache-dir", f".mypy_cache/{Path(config).stem}", *self.folders]
        environment = {**os.environ, "MYPYPATH": os.pathsep.join([*self.path, "tests", *sources])}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def runs(chosen: list[str]) -> list[Run]:
    """Return the fewest runs that check these folders, without two files of the same name in a run."""
    found: list[Run] = []
    for folder in chosen:
        path = path_of(folder)
        files: dict[str, Path] = {}
        for one in reversed(path):
            files.update(modules_of(one))
        fitting = (run for run in found if all(run.files.get(name, file) == file for name, file in files.items()))
        run = next(fitting, None)
        if run is None:
            run = Run()
            found.append(run)
        run.folders.append(folder)
        run.path.extend(one for one in path if one not in run.path)
        run.files.update(files)
    return found


def main(only: list[str]) -> int:
    passed = []
    for roots, strict in ((STRICT, True), (PLAIN, False)):
        chosen = [folder for folder in folders(roots) if folder not in CHECKED_WITH_THE_PACKAGES]
        if only:
            chosen = [folder for folder in chosen if any(Path(folder).is_relative_to(one) for one in only)]
        passed += [run.passes(strict=strict) for run in runs(chosen)]
    if not passed:
        sys.exit(f"no modules in {', '.join(only)}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main([str(Path(name)) for name in sys.argv[1:]]))
