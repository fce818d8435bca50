"""Release a package: version, changelog, files, tests of the installed files, an SBOM, digests, commit and tag.

    hatch run release:package parl-core minor              major, minor, patch, or a version such as 0.3.0rc1
    hatch run release:package parl-core minor --dry-run    everything except the commit and tag in this checkout
    hatch run release:check                                the dry run of all packages, one after the other

All steps run in a clone of the last commit. Your checkout gets the commit and the tag after all steps have passed.
Nothing is pushed or uploaded. Arguments after `--` go to pytest.

| step | fails when |
| --- | --- |
| version | the tag exists, or a fragment in `changes/` is wrong |
| build | two builds in two folders differ by a byte; the wheel is built from the sdist |
| install | the wheel cannot be imported with only its requirements |
| newest | the package's own tests fail with the newest dependencies and the siblings of the commit |
| oldest | they fail with the oldest dependencies that `pyproject.toml` allows |
| previous | they fail with the siblings' last releases; those that exclude the new version must reject it with a
one-line error |

torch and paddle have the versions of `tools/constraints.txt`. `--out` receives the wheel, the sdist, an SBOM of the
install step (CycloneDX, by cyclonedx-bom) and `PACKAGE-VERSION.sha256`: the subjects of an attestation, in the format
of `sha256sum --check` and the `subject-checksums` of GitHub's `actions/attest`.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import changelog
import suites
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[1]

# in the order of a release of all packages
PACKAGES = ("parl-core", "parl-remote", "parl-torch", "parl-paddle", "parl-evokit")
_LEVELS = ("major", "minor", "patch")
_NUMBER = "(0|[1-9][0-9]*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}((a|b|rc){_NUMBER})?")
_TESTED_IN = {"parl-torch": "torch", "parl-paddle": "paddle"}  # environments of hatch.toml; the other packages use base


class ReleaseError(RuntimeError):
    """A step of a release failed; the message has the step and the reason."""


class Row(NamedTuple):
    """A finished step, for the table."""

    package: str
    step: str
    seconds: float
    said: str


class Release:
    """The release of one package, made in a clone."""

    def __init__(self, package: str, clone: Path, scratch: Path, out: Path, pytest_arguments: Sequence[str]) -> None:
        self.package = package
        self.clone = clone
        self.out = out
        self.rows: list[Row] = []
        self.version = ""
        self._scratch = scratch / package
        self._wheels = scratch / "wheels"
        self._pytest_arguments = pytest_arguments
        self._files: list[Path] = []
        settings = _toml((clone / "hatch.toml").read_text(encoding="utf-8"))["envs"][_TESTED_IN.get(package, "base")]
        self._test_requirements: list[str] = settings["dependencies"]
        members = [member.rpartition("/")[2] for member in settings["workspace"]["members"]]
        self._siblings = [member for member in members if member != package]

    @property
    def tag(self) -> str:
        """The tag of this release."""
        return f"{self.package}-v{self.version}"

    def run(self, wanted: str) -> None:
        """Run all steps.

        Raises:
            ReleaseError: A step failed.
        """
        previous = {name: tag for name in PACKAGES if name != self.package and (tag := last_tag(self.clone, name))}
        steps: dict[str, Callable[[], str]] = {
            "version": lambda: self._set_version(wanted),
            "build": self._build,
            "install": self._install,
            "newest": lambda: self._test("newest", self._of_commit(self._siblings)),
            "oldest": lambda: self._test("oldest", self._of_commit(self._siblings), oldest=True),
            "previous": lambda: self._test_previous(previous),
        }
        for name, step in steps.items():
            print(f"== {self.package}: {name}", flush=True)
            began = time.monotonic()
            said = step()
            self.rows.append(Row(self.package, name, time.monotonic() - began, said))

    def _set_version(self, wanted: str) -> str:
        file, current = version_in(self.clone, self.package)
        self.version = next_version(current, wanted)
        if _git(self.clone, "tag", "--list", self.tag):
            raise ReleaseError(f"the tag {self.tag} exists: choose another version")
        if Version(self.version) < Version(current):
            raise ReleaseError(f"{self.version} is below the version of the checkout, {current}: choose a later one")
        if wrong := changelog.problems(self.package, self.clone):
            raise ReleaseError("\n".join(wrong))
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(f'"{current}"', f'"{self.version}"'), encoding="utf-8")
        widened = widen(self.clone, self.package, api_bound(self.version))
        changelog.build(self.package, self.version, draft=False, root=self.clone)
        _git(self.clone, "add", "--all", "packages")
        _git(self.clone, "commit", "--quiet", "--message", f"Release: {self.package} {self.version}")
        _git(self.clone, "tag", self.tag)
        bounds = f"; siblings below {api_bound(self.version)} ({len(widened)} files)" if widened else ""
        return f"{current} -> {self.version}{bounds}"

    def _build(self) -> str:
        builds = [build(self.clone, self.tag, self.package, self._scratch / name) for name in ("one", "two")]
        first, second = ([(file.name, _digest(file)) for file in files] for files in builds)
        if first != second:
            raise ReleaseError(f"two builds of {self.tag} differ: {first} and {second}")
        self.out.mkdir(parents=True, exist_ok=True)
        self._files = [Path(shutil.copy2(file, self.out)) for file in builds[0]]
        return ", ".join(f"{name} {digest[:12]}" for name, digest in first)

    def _install(self) -> str:
        """Install the wheel with its requirements, import it, list the installed components, and write all digests."""
        required = requirements(self._pyproject(), extras=False)
        python = self._environment("install", self._of_commit(name for name in PACKAGES if name in required))
        _do(self._scratch, python, "-c", f"import {self.package.replace('-', '_')}")
        bill = self.out / f"{self.package}-{self.version}.cdx.json"
        words = ("environment", "--output-reproducible", "--of", "JSON", "--output-file", bill, python)
        _do(self._scratch, Path(sys.executable).parent / "cyclonedx-py", *words)
        contents = json.loads(bill.read_text(encoding="utf-8"))
        for component in contents["components"]:
            if component["name"] in PACKAGES:  # their wheels were in this run's temporary folder
                component.pop("externalReferences", None)
        bill.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
        self._files.append(bill)
        digests = "".join(f"{_digest(file)}  {file.name}\n" for file in self._files)
        (self.out / f"{self.package}-{self.version}.sha256").write_text(digests, encoding="utf-8")
        return f"{len(contents['components'])} components in {bill.name}"

    def _test_previous(self, tags: dict[str, str]) -> str:
        """Run the tests with the siblings' last releases; those that exclude this version must raise an error."""
        said = []
        fitting = []
        released = {name: tag.rpartition("-v")[2] for name, tag in tags.items()}
        for name, tag in tags.items():
            project = _toml(_git(self.clone, "show", f"{tag}:packages/{name}/pyproject.toml"))
            known = requirements(project)
            fits = all(known[one].contains(released[one], prereleases=True) for one in released.keys() & known.keys())
            if self.package in known and not known[self.package].contains(self.version, prereleases=True):
                if self.package in requirements(project, extras=False):  # requirements of extras are not imported
                    self._see_refusal(name, tag)
                    said.append(f"{tag} refuses it in one line")
            elif name in self._siblings and fits:  # together with the others' last releases
                fitting.append(name)
        if fitting:
            wheels = self._of_commit(name for name in self._siblings if name not in fitting)
            wheels += [wheel(self.clone, tags[name], name, self._wheels) for name in fitting]
            said.append(f"{self._test('previous', wheels)} with {', '.join(tags[name] for name in fitting)}")
        return "; ".join(said) or "its tests use no sibling that has a release"

    def _see_refusal(self, name: str, tag: str) -> None:
        """Check that a sibling's release, put beside this version all the same, answers with one line."""
        python = self._environment(f"beside-{name}", ())
        _uv("pip", "install", "--python", python, "--no-deps", wheel(self.clone, tag, name, self._wheels))
        command = [str(python), "-c", f"import {name.replace('-', '_')}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_clean(python))
        (*_, last) = ["nothing", *done.stderr.strip().splitlines()]
        if not done.returncode or f"{self.package} {self.version} is installed: pip install" not in last:
            raise ReleaseError(f"{tag} beside {self.package} {self.version} says {last}")
        print(last)

    def _test(self, name: str, siblings: Iterable[Path], *, oldest: bool = False) -> str:
        """Run the package's own tests in a new environment, and return pytest's last line."""
        python = self._environment(name, [*siblings, *self._test_requirements], oldest=oldest)
        command = [python, "-m", "pytest", "-c", "tools/pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider"]
        command += ["-q", "-m", "not slow", "-n", min((os.cpu_count() or 1) + 1, suites.MOST_WORKERS)]
        if oldest:  # warnings of old libraries do not count
            command += ["-W", "ignore::DeprecationWarning"]
        command += ["--dist", "loadfile", *self._pytest_arguments, f"packages/{self.package}/tests"]
        last = ""
        with subprocess.Popen(
            [str(word) for word in command],
            cwd=self._checkout(),
            env=_clean(python) | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                print(line, end="", flush=True)
                last = line.strip("= \n") or last
        if running.returncode:
            raise ReleaseError(f"the tests of {self.tag} fail with {name}: {last}")
        shutil.rmtree(python.parents[1])
        return last

    def _checkout(self) -> Path:
        """Return a checkout of the release without the sources of packages, so that tests use the installed ones."""
        folder = self._scratch / "checkout"
        if not folder.exists():
            _git(self.clone, "worktree", "add", "--quiet", "--detach", folder, self.tag)
            for source in folder.glob("packages/*/src"):
                shutil.rmtree(source)
        return folder

    def _environment(self, name: str, wanted: Iterable[object], *, oldest: bool = False) -> Path:
        """Return the Python of a new environment with the package and other requirements."""
        python = self._scratch / "environments" / name / "bin" / "python"
        _uv("venv", "--python", sys.executable, python.parents[1])
        pinned = self.clone / "tools" / "constraints.txt"
        limits = ["--constraint", pinned]
        if oldest:
            lowest = self._scratch / "oldest.txt"
            left = {*PACKAGES, *re.findall(r"^(\w+)==", pinned.read_text(), re.MULTILINE)}
            lines = [
                f"{name}=={bound.version}\n"
                for name, bounds in requirements(self._pyproject()).items()
                for bound in bounds
                if bound.operator == ">=" and name not in left
            ]
            lowest.write_text("".join(lines))
            limits += ["--constraint", lowest]
        (own,) = (file for file in self._files if file.suffix == ".whl")
        _uv("pip", "install", "--python", python, *limits, own, *wanted)
        return python

    def _of_commit(self, names: Iterable[str]) -> list[Path]:
        return [wheel(self.clone, self.tag, name, self._wheels) for name in names]

    def _pyproject(self) -> dict[str, Any]:
        return _toml((self.clone / "packages" / self.package / "pyproject.toml").read_text(encoding="utf-8"))


def api_bound(version: str) -> str:
    """Return the first version after the API version of `version`: 0.2 for 0.1.5, and 2 for 1.4.0."""
    major, minor = (int(number) for number in version.split(".")[:2])
    return f"0.{minor + 1}" if major == 0 else str(major + 1)


def version_in(root: Path, package: str) -> tuple[Path, str]:
    """Return the file with a package's version in a checkout, and the version."""
    (file,) = (root / "packages" / package).glob("src/*/_version.py")
    return file, file.read_text(encoding="utf-8").partition('__version__ = "')[2].partition('"')[0]


def next_version(current: str, wanted: str) -> str:
    """Return the next version, given the current one and `wanted` (a level or a version).

    Raises:
        ReleaseError: It is neither.
    """
    if _VERSION.fullmatch(wanted):
        return wanted
    found = _VERSION.fullmatch(current)
    if wanted not in _LEVELS or found is None:
        raise ReleaseError(f"{wanted!r} is neither {', '.join(_LEVELS)} nor a version such as 0.3.0 or 0.3.0rc1")
    numbers = [int(number) for number in found.groups()[:3]]
    place = _LEVELS.index(wanted)
    if found[4] is None or any(numbers[place + 1 :]):  # a minor version after 0.2.0rc1 is 0.2.0
        numbers[place] += 1
    return ".".join(str(number) for number in [*numbers[: place + 1], 0, 0][:3])


def requirements(project: dict[str, Any], *, extras: bool = True) -> dict[str, SpecifierSet]:
    """Return the bounds of each requirement of a `pyproject.toml`, with or without its extras."""
    lines = list(project["project"]["dependencies"])
    if extras:
        lines += [line for extra in project["project"].get("optional-dependencies", {}).values() for line in extra]
    found = [Requirement(line) for line in lines]
    return {requirement.name: requirement.specifier for requirement in found if requirement.specifier}


def widen(root: Path, package: str, bound: str) -> list[Path]:
    """Widen the siblings' bounds in a checkout to a new API version of `package`.

    Returns:
        The files that were changed.
    """
    constant = package.upper().replace("-", "_")
    patterns = {
        "pyproject.toml": rf'("{package}(?:\[\w+\])?>=[\w.]+,<)[\w.]+',
        "_version.py": rf'({constant} = ">=[\w.]+,<)[\w.]+',
    }
    changed = []
    for name, pattern in patterns.items():
        for file in sorted((root / "packages").rglob(name)):
            old = file.read_text(encoding="utf-8")
            new = re.sub(pattern, rf"\g<1>{bound}", old)
            if new != old:
                file.write_text(new, encoding="utf-8")
                changed.append(file)
    return changed


def build(clone: Path, revision: str, package: str, folder: Path) -> tuple[Path, Path]:
    """Build the sdist of a package at a revision, and from it the wheel, with the time of the commit.

    Returns:
        The paths of the sdist and of the wheel in `folder`.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    _git(clone, "archive", "--output", archive, revision, f"packages/{package}")
    shutil.unpack_archive(archive, source, filter="data")
    epoch = _git(clone, "show", "--no-patch", "--format=%ct", f"{revision}^{{commit}}")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source / "packages" / package]
    _do(clone, *command, environment={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    (sdist,), (built,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, built


def wheel(clone: Path, revision: str, package: str, folder: Path) -> Path:
    """Return the wheel of a package at a revision, which is built once per commit."""
    place = folder / f"{package}-{_git(clone, 'rev-parse', f'{revision}^{{commit}}')}"
    return next(iter(place.glob("*.whl")), None) or build(clone, revision, package, place)[1]


def last_tag(clone: Path, package: str) -> str | None:
    """Return the tag of the package's last release before the present commit, or None."""
    tags = _git(clone, "tag", "--merged", "HEAD", "--list", f"{package}-v*").splitlines()
    return max(tags, key=lambda tag: Version(tag.removeprefix(f"{package}-v")), default=None)


def clone_of(root: Path, folder: Path) -> Path:
    """Return a clone of a checkout's last commit, with the same committer."""
    clone = folder / "clone"
    _git(folder, "clone", "--quiet", root, clone)
    for key, unknown in (("user.name", "release"), ("user.email", "release@localhost")):
        _git(clone, "config", key, _git(root, "config", "--default", unknown, "--get", key))
    return clone


def release(
    package: str, wanted: str, out: Path, pytest_arguments: Sequence[str], *, dry_run: bool
) -> tuple[list[Row], list[str]]:
    """Release one package, and copy commit and tag into this checkout unless it is a dry run.

    Returns:
        The finished steps, and the failure, if there was one.

    Raises:
        ReleaseError: The checkout has uncommitted changes.
    """
    if not dry_run:
        require_committed(ROOT)
    with tempfile.TemporaryDirectory(prefix="parl-release-") as scratch:
        clone = clone_of(ROOT, Path(scratch))
        one = Release(package, clone, Path(scratch), out, pytest_arguments)
        try:
            one.run(wanted)
            if not dry_run:
                _git(ROOT, "fetch", "--quiet", "--no-tags", clone, f"refs/tags/{one.tag}")
                _git(ROOT, "merge", "--quiet", "--ff-only", "FETCH_HEAD")  # fails if the checkout has other commits
                _git(ROOT, "tag", one.tag, "FETCH_HEAD")
        except RuntimeError as error:
            return one.rows, [str(error)]
    return one.rows, []


def require_committed(root: Path) -> None:
    """Check that a checkout has no changes that a release would leave out.

    Raises:
        ReleaseError: It has changed files, or new ones among the packages.
    """
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise ReleaseError("commit or stash your changes first, because a release is made from a commit")
    if new := _git(root, "ls-files", "--others", "--exclude-standard", "packages").splitlines():
        raise ReleaseError(f"commit or remove {', '.join(new)} first, because a release is made from a commit")


def rehearse(packages: Sequence[str], out: Path, pytest_arguments: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Release packages one after the other in a clone, each as a minor version.

    For a package without a release, a tag on the present commit is used.

    Returns:
        The finished steps, and the failures.
    """
    rows: list[Row] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="parl-release-") as scratch:
        clone = clone_of(ROOT, Path(scratch))
        for package in PACKAGES:
            if last_tag(clone, package) is None:
                _git(clone, "tag", f"{package}-v{version_in(clone, package)[1]}")
        for package in packages:
            one = Release(package, clone, Path(scratch), out, pytest_arguments)
            try:
                one.run("minor")
            except RuntimeError as error:
                failed.append(f"{package}: {error}")
                print(f"FAILED {failed[-1]}", flush=True)
            rows += one.rows
    return rows, failed


def _toml(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _clean(python: Path) -> dict[str, str]:
    """Return the variables of a process in a new environment, without those of this environment."""
    dropped = {"PYTHONPATH", "PARL_BACKEND", "PARL_DEVICE", "PIP_CONSTRAINT"}
    dropped.add("PYTHONDONTWRITEBYTECODE")  # otherwise thousands of test processes would compile the package again
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"VIRTUAL_ENV": str(python.parents[1]), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def _git(folder: Path, *words: object) -> str:
    command = ["git", "-C", *map(str, [folder, *words])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _uv(*words: object) -> None:
    _do(ROOT, Path(sys.executable).parent / "uv", *words[:1], "--quiet", *words[1:])


def _do(folder: Path, *words: object, environment: dict[str, str] | None = None) -> None:
    """Run a program, and print its output only if it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def main() -> int:
    """Run the command line, and print a line for each step."""
    # background jobs of a shell ignore SIGINT, and so would tests
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "package", nargs="*", help=f"package and version; with --check, packages (default: all of {PACKAGES}"
    )
    parser.add_argument("--check", action="store_true", help="dry run of packages, each as a minor version")
    parser.add_argument("--dry-run", action="store_true", help="leave this checkout unchanged")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files (default: dist)")
    words = [*sys.argv[1:], "--"]
    behind = words.index("--")
    arguments, pytest_arguments = parser.parse_args(words[:behind]), words[behind + 1 : -1]
    out = arguments.out.absolute()
    if unknown := {*arguments.package[: None if arguments.check else 1]}.difference(PACKAGES):
        parser.error(f"{', '.join(unknown)}: no such package; there are {', '.join(PACKAGES)}")
    failed: list[str] = []
    if arguments.check:
        rows, failed = rehearse(arguments.package or PACKAGES, out, pytest_arguments)
    elif len(arguments.package) == 2:
        try:
            package, wanted = arguments.package
            rows, failed = release(package, wanted, out, pytest_arguments, dry_run=arguments.dry_run)
        except RuntimeError as error:
            rows, failed = [], [str(error)]
    else:
        parser.error("name a package and major, minor, patch or a version; or --check")
    print("\n| package | step | seconds | |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.package} | {row.step} | {row.seconds:.0f} | {row.said} |")
    print("".join(f"\nFAILED {what}" for what in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
