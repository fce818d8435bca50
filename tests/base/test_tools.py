"""The repository's own tools find what they are there to find."""

import importlib
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from packaging.specifiers import SpecifierSet

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import tools by name, and forget them after the test."""
    monkeypatch.syspath_prepend(str(TOOLS))
    before = {*sys.modules}
    yield importlib.import_module
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(TOOLS)):
            del sys.modules[name]


def tree(root: Path, **modules: str) -> Path:
    """Write modules of a package `parl_core` into a checkout."""
    folder = root / "packages" / "parl-core" / "src" / "parl_core"
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (folder / f"{name}.py").write_text(text)
    return root


@pytest.mark.parametrize(
    "back",
    [
        "from parl_core import a",
        "def f():\n    import parl_core.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from parl_core.a import x",
        "import importlib\ndef f():\n    return importlib.import_module('parl_core.a').x",
    ],
    ids=["module", "function", "typing", "name"],
)
def test_a_cycle_of_imports_of_every_kind_is_found(tool: Any, tmp_path: Path, back: str) -> None:
    structure = tool("structure").Structure(tree(tmp_path, a="from parl_core.b import y\nx = 1", b=f"{back}\ny = 2"))
    assert structure.cycles("parl_core") == [["parl_core.a", "parl_core.b"]]


def test_chains_and_modules_that_one_other_imports_are_counted(tool: Any, tmp_path: Path) -> None:
    found = tool("structure").Structure(
        tree(
            tmp_path,
            a="import parl_core.b\nimport parl_core.c",
            b='"""Nothing but\nthis."""\nimport parl_core.c  # the end\n\n',
            c="x = 1",
        )
    )
    assert found.cycles("parl_core") == []
    assert found.longest_chain("parl_core") == ["parl_core.a", "parl_core.b", "parl_core.c"]
    assert found.imported_by_one("parl_core") == [("parl_core.b", "parl_core.a")]
    assert found.modules["parl_core.b"].code_lines() == 1


def test_an_import_in_a_function_needs_a_reason(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    structure = tool("structure")
    late = "def f():\n    from parl_core import b, c\n    import numpy\n    import tqdm, asyncio.events"
    found = structure.Structure(tree(tmp_path, a=late, b="x = 1", c="def g():\n    from parl_core import b"))
    monkeypatch.setattr(structure, "LATE_ANYWHERE", dict.fromkeys(("tqdm", "wandb"), structure.OPTIONAL))
    allowed = [("parl_core.a", "parl_core.b"), ("parl_core.a", "asyncio"), ("parl_core.c", "asyncio")]
    monkeypatch.setattr(structure, "LATE", dict.fromkeys(allowed, structure.START))
    assert structure.without_reason(found) == [
        "parl_core.a imports numpy in a function",
        "parl_core.a imports parl_core.c in a function",
        "parl_core.c imports parl_core.b in a function",
        "no function imports wandb; remove it from LATE_ANYWHERE",
        "parl_core.c does not import asyncio in functions; remove it from LATE",
    ]


def test_public_names_are_those_of_public_modules(tool: Any, tmp_path: Path) -> None:
    names = tool("public_names")
    assert names.is_public(("parl_remote", "pools", "__init__"))
    assert not names.is_public(("parl_remote", "_pools", "pool"))
    path = tmp_path / "module.py"
    path.write_text('__all__: list[str] = ["b", "a"]\n')
    assert names.names_in(path) == ["a", "b"]
    path.write_text('__all__ = [name for name in "ab"]\n')
    with pytest.raises(ValueError, match="must be a list"):
        names.names_in(path)


def test_what_looks_public_and_is_not_listed_is_reported(tool: Any, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('__all__ = ["a"]\nLIMIT = 1\ndef a(): ...\ndef b(): ...\nclass C: ...\ndef _d(): ...\n')
    assert tool("public_names").left_out(path) == ["b (line 4)", "C (line 5)"]


def test_a_changelog_fragment_with_another_kind_is_refused(tool: Any, tmp_path: Path) -> None:
    changelog = tool("changelog")
    folder = tmp_path / "packages" / "parl-core"
    (folder / "changes").mkdir(parents=True)
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases -->\n")
    (folder / "changes" / "faster.changed.md").write_text("A step is faster.\n")
    (folder / "changes" / "odd.improved.md").write_text("A step is better.\n")
    (folder / "changes" / "cut.fixed.md").write_text("A step\n")
    assert [line.partition(":")[0] for line in changelog.problems("parl-core", tmp_path)] == [
        "packages/parl-core/changes/cut.fixed.md",
        "packages/parl-core/changes/odd.improved.md",
    ]


def test_types_alone_do_not_change_the_program_of_a_cell(tool: Any) -> None:
    notebooks = tool("notebooks")
    typed = "from typing import Any\ndef f(x: Any, n: int = 2) -> list[int]:\n    y: list[int] = [x] * n\n    return y"
    plain = "def f(x, n=2):\n    y = [x] * n\n    return y"
    assert notebooks.program_of(notebooks.Cell("code", typed)) == notebooks.program_of(notebooks.Cell("code", plain))
    other = plain.replace("2", "3")
    assert notebooks.program_of(notebooks.Cell("code", typed)) != notebooks.program_of(notebooks.Cell("code", other))


def test_versions_follow_their_level(tool: Any) -> None:
    release = tool("release")
    follow = [("0.1.0", "minor"), ("0.1.3", "patch"), ("0.9.3", "major"), ("0.2.0rc1", "minor"), ("0.2.0rc1", "patch")]
    assert [release.next_version(*pair) for pair in follow] == ["0.2.0", "0.1.4", "1.0.0", "0.2.0", "0.2.0"]
    assert release.next_version("0.2.1rc1", "minor") == "0.3.0"
    assert release.next_version("0.1.0", "0.3.0b2") == "0.3.0b2"
    for wrong in ("0.3", "v0.3.0", "0.03.0", "0.3.0rc01", "0.3.0-rc1", "0.3.0.dev1", "\u0663.0.0"):
        with pytest.raises(release.ReleaseError, match="is neither major, minor, patch nor a version such as"):
            release.next_version("0.1.0", wrong)


def test_a_new_api_version_widens_the_bounds_of_siblings_in_metadata_and_code(tool: Any, tmp_path: Path) -> None:
    release = tool("release")
    folder = tmp_path / "packages" / "parl-torch"
    (folder / "src" / "parl_torch").mkdir(parents=True)
    project, version = folder / "pyproject.toml", folder / "src" / "parl_torch" / "_version.py"
    project.write_text('dependencies = ["parl-core[train]>=0.1,<0.2", "parl-core-data>=0.1,<0.2", "torch>=2.4"]\n')
    version.write_text('__version__ = "0.1.0"\nPARL_CORE = ">=0.1,<0.2"  # as there\n')
    assert release.widen(tmp_path, "parl-core", release.api_bound("0.2.0")) == [project, version]
    assert '"parl-core[train]>=0.1,<0.3", "parl-core-data>=0.1,<0.2"' in project.read_text()
    assert version.read_text() == '__version__ = "0.1.0"\nPARL_CORE = ">=0.1,<0.3"  # as there\n'
    assert release.widen(tmp_path, "parl-core", release.api_bound("0.2.7")) == []
    assert release.api_bound("1.4.0") == "2"


@pytest.mark.parametrize("package", ["remote", "torch", "paddle", "evokit"])
def test_a_package_states_the_same_bounds_of_parl_core_to_installers_and_to_python(tool: Any, package: str) -> None:
    release = tool("release")
    folder = TOOLS.parent / "packages" / f"parl-{package}"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    constants = runpy.run_path(str(folder / "src" / f"parl_{package}" / "_version.py"))
    assert release.requirements(project, extras=False)["parl-core"] == SpecifierSet(constants["PARL_CORE"])
    _, current = release.version_in(TOOLS.parent, "parl-core")
    assert SpecifierSet(constants["PARL_CORE"]).contains(current)


def test_a_release_of_a_clone_has_a_commit_and_a_tag_and_leaves_the_checkout(tool: Any, tmp_path: Path) -> None:
    release = tool("release")
    clone = release.clone_of(TOOLS.parent, tmp_path)
    listed = subprocess.run(["git", "tag"], cwd=clone, check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["git", "tag", "--delete", *listed], cwd=clone, check=True)  # as before the first release
    done = release.Release("parl-core", clone, tmp_path / "scratch", tmp_path / "out", ())
    assert release.last_tag(clone, "parl-core") is None
    assert done._test_previous({}) == "its tests use no sibling that has a release"
    bounds = release.requirements(tomllib.loads((clone / "packages/parl-remote/pyproject.toml").read_text()))
    assert not bounds["parl-core"].contains("999.0.0")
    subprocess.run(["git", "tag", f"parl-core-v{release.version_in(clone, 'parl-core')[1]}"], cwd=clone, check=True)
    assert release.last_tag(clone, "parl-core") == f"parl-core-v{release.version_in(clone, 'parl-core')[1]}"
    with pytest.raises(release.ReleaseError, match="exists: choose another version"):
        done.run(release.version_in(clone, "parl-core")[1])
    with pytest.raises(release.ReleaseError, match=r"0\.0\.1 is below the version of the checkout"):
        done.run("0.0.1")


def test_a_release_that_fails_reports_the_steps_before(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tool("release")
    row = release.Row("parl-core", "build", 1.0, "two files")

    def run(one: Any, wanted: str) -> None:
        one.rows.append(row)
        raise release.ReleaseError(f"no {wanted}")

    monkeypatch.setattr(release.Release, "run", run)
    assert release.release("parl-core", "minor", tmp_path, (), dry_run=True) == ([row], ["no minor"])


def commit(folder: Path, message: str) -> None:
    subprocess.run(["git", "commit", "--quiet", "--allow-empty", "--message", message], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout of one empty commit."""
    folder = tmp_path / "checkout"
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    for key in ("user.name", "user.email"):
        subprocess.run(["git", "config", key, "tests@localhost"], cwd=folder, check=True)
    commit(folder, "First")
    return folder


def test_a_release_leaves_out_no_file_of_the_checkout(tool: Any, checkout: Path) -> None:
    release = tool("release")
    module = checkout / "packages" / "parl-core" / "module.py"
    module.parent.mkdir(parents=True)
    (checkout / "notes.txt").touch()
    release.require_committed(checkout)
    module.touch()
    with pytest.raises(release.ReleaseError, match=r"commit or remove packages/parl-core/module\.py first"):
        release.require_committed(checkout)
    subprocess.run(["git", "add", "packages"], cwd=checkout, check=True)
    with pytest.raises(release.ReleaseError, match="commit or stash your changes first"):
        release.require_committed(checkout)
    commit(checkout, "A module")
    release.require_committed(checkout)


def tags_of(folder: Path) -> list[str]:
    return subprocess.run(["git", "tag"], cwd=folder, check=True, capture_output=True, text=True).stdout.split()


def test_a_release_follows_its_candidates(tool: Any, checkout: Path) -> None:
    release = tool("release")
    order = ["0.9.0", "0.10.0a1", "0.10.0b1", "0.10.0rc2", "0.10.0rc10", "0.10.0"]
    for version in order:
        subprocess.run(["git", "tag", f"parl-core-v{version}"], cwd=checkout, check=True)
    while order:
        last = f"parl-core-v{order.pop()}"
        assert release.last_tag(checkout, "parl-core") == last
        subprocess.run(["git", "tag", "--delete", last], cwd=checkout, check=True, capture_output=True)
    assert release.last_tag(checkout, "parl-core") is None


@pytest.mark.parametrize("moves", [False, True])
def test_a_release_brings_commit_and_tag_or_neither(
    tool: Any, tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    release = tool("release")

    class Done:
        tag = "parl-core-v0.2.0"

        def __init__(self, package: str, clone: Path, *_: object) -> None:
            self.clone, self.rows = clone, ["a row"]

        def run(self, wanted: str) -> None:
            commit(self.clone, wanted)
            subprocess.run(["git", "tag", self.tag], cwd=self.clone, check=True)
            if moves:
                commit(checkout, "Meanwhile")

    monkeypatch.setattr(release, "ROOT", checkout)
    monkeypatch.setattr(release, "Release", Done)
    rows, failed = release.release("parl-core", "minor", tmp_path, (), dry_run=False)
    assert rows == ["a row"]
    if moves:
        assert "fast-forward" in failed[0]
        assert tags_of(checkout) == []
    else:
        assert not failed
        assert tags_of(checkout) == [Done.tag]
        heads = subprocess.run(
            ["git", "rev-parse", "HEAD", f"{Done.tag}^{{commit}}"], cwd=checkout, check=True, capture_output=True
        )
        assert len({*heads.stdout.split()}) == 1


def test_a_path_that_does_not_exist_is_refused(tool: Any) -> None:
    with pytest.raises(SystemExit, match=r"no such file or folder: packages/parl-core/tests/test_calls_\.py"):
        tool("suites").one("base", ["packages/parl-core/tests/test_calls_.py", "-k", "a/b"])


@pytest.fixture
def commands(tool: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of suites, which are not run."""
    found: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        found.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(tool("suites").subprocess, "run", run)
    return found


def test_tests_that_failed_are_repeated_without_collecting_the_suite(
    tool: Any,
    commands: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    suites = tool("suites")
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    assert suites.one("base", ["--lf"]) == 0
    assert (commands, capsys.readouterr().out) == ([], "base: no test failed the last time\n")
    (tmp_path / "test_here.py").touch()
    cache = tmp_path / ".pytest_cache" / "base" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text('{"test_here.py::test_one": true, "test_gone.py::test_two": true}')
    assert suites.one("base", ["--lf"]) == 0
    [command] = commands
    assert command[-2:] == ["--lf", "test_here.py"]
    assert "-n" not in command
    assert "not slow" not in command  # a slow test that failed is repeated as well


@pytest.mark.parametrize("option", ["--ignore", "--deselect"])
def test_the_value_of_an_option_is_no_path_to_run(tool: Any, commands: list[list[str]], option: str) -> None:
    left_out = "tests/base/test_tools.py::test_one"
    tool("suites").one("base", [option, left_out])
    [command] = commands
    assert command[-2:] == [option, left_out]
    assert {"tests/base", "not slow", "-n"} <= {*command}


@pytest.mark.parametrize("parallel", [["-n", "4"], ["-n4"], ["--numprocesses=4"]])
@pytest.mark.parametrize("paths", [[], ["tests/base"]])
def test_files_stay_together_in_any_number_of_workers(
    tool: Any, commands: list[list[str]], parallel: list[str], paths: list[str]
) -> None:
    tool("suites").one("base", [*parallel, *paths])
    [command] = commands
    assert command[command.index("--dist") + 1] == "loadfile"
    assert command.count("-n") == parallel.count("-n")


def test_all_suites_together_refuse_to_run_no_test(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = tool("suites")
    monkeypatch.setattr(suites.shutil, "which", lambda _: "hatch")
    codes = dict.fromkeys(suites.SUITES, suites._NOTHING_CHOSEN)
    monkeypatch.setattr(suites, "_through_hatch", lambda suite, _: (codes[suite], "no tests ran"))
    assert suites.every(["-k", "tpyo"]) == 1
    assert "no suite has a test that these arguments select: -k tpyo" in capsys.readouterr().out
    codes["base"] = 0
    assert suites.every(["-k", "typo"]) == 0


def test_every_python_that_starts_runs_the_suite_and_the_result_names_each(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long_tests = tool("long_tests")
    for version, code in {"3.11": 0, "3.12": 127, "3.13": 0}.items():  # 3.12 is a shim that has no Python
        shim = tmp_path / f"python{version}"
        shim.write_text(f"#!/bin/sh\nexit {code}\n")
        shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    failing: set[str] = set()

    def do(_: Path, *command: object) -> None:
        words = [str(word) for word in command]
        if words[1:] == ["tools/suites.py", "base"] and any(version in words[0] for version in failing):
            raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(long_tests, "_do", do)
    assert long_tests.main("pythons") == 0
    assert "passed  3.11 passed; 3.12 not installed; 3.13 passed; 3.14 not installed\n" in capsys.readouterr().out
    failing.add("3.11")
    assert long_tests.main("pythons") == 1
    told = capsys.readouterr().out
    assert "3.11 FAILED: " in told
    assert "3.13 passed" in told
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert long_tests.main("pythons") == 1


def test_every_check_runs_and_a_failed_one_shows_what_it_printed(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = tool("checks")
    say = (sys.executable, "-c")
    monkeypatch.setitem(
        checks.CHECKS,
        "lint",
        {"first": (*say, "print('found'); raise SystemExit(1)"), "second": (*say, "print('quiet')")},
    )
    assert checks.main(["lint"]) == 1
    printed = capsys.readouterr().out
    assert "found\nFAILED  first (" in printed
    assert "passed  second (" in printed
    assert "quiet" not in printed
    with pytest.raises(SystemExit, match="name one of: all, lint, torch, paddle; not lnt"):
        checks.main(["lnt"])


def test_each_run_of_a_test_draws_the_same_examples(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--hypothesis-profile") == "random":
        pytest.skip("random examples were asked for")
    import faults.repeated_examples  # noqa: F401  # a profile of Hypothesis

    drawn: list[int] = []

    @hypothesis.given(hypothesis.strategies.integers())
    def test(number: int) -> None:
        drawn.append(number)

    test()
    first = drawn.copy()
    drawn.clear()
    test()
    assert drawn == first
