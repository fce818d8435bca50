"""The files that `distributed_files` selects."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from parl_remote._files.selection import Exclusions, select_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("data/a.csv", "data/b.csv", "data/deep/c.csv", "data/.hidden", "notes.txt", "a[1].txt", "a1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data/empty/inner").mkdir(parents=True)
    return tmp_path


def names(project: Path, *patterns: str) -> list[str]:
    return list(select_files(patterns, str(project)))


def test_a_file_and_a_pattern_name_files(project: Path) -> None:
    assert names(project, "notes.txt", "data/*.csv") == ["data/a.csv", "data/b.csv", "notes.txt"]
    assert select_files(["notes.txt"], str(project)) == {"notes.txt": str(project / "notes.txt")}


def test_a_directory_brings_all_beneath_it_empty_directories_and_hidden_files_too(project: Path) -> None:
    everything = [
        "data",
        "data/.hidden",
        "data/a.csv",
        "data/b.csv",
        "data/deep",
        "data/deep/c.csv",
        "data/empty",
        "data/empty/inner",
    ]
    assert names(project, "data") == everything
    assert names(project, "./data/") == everything
    assert select_files(["data"], str(project))["data/empty/inner"] is None


def test_two_stars_match_at_any_depth(project: Path) -> None:
    assert names(project, "**/*.csv") == ["data/a.csv", "data/b.csv", "data/deep/c.csv"]


def test_the_whole_directory_can_be_named(project: Path) -> None:
    assert {"notes.txt", "data/deep/c.csv", "a[1].txt"} <= set(names(project, "."))
    assert "" not in names(project, ".")


def test_a_file_may_be_called_what_looks_like_a_pattern(project: Path) -> None:
    assert names(project, "a[1].txt") == ["a[1].txt"]
    assert names(project, "a[0-9].txt") == ["a1.txt"]


@pytest.mark.parametrize("pattern", ["/etc/hosts", "/", "!/etc", "C:\\data", "c:data"])
def test_absolute_patterns_are_refused_by_name(project: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="is absolute") as refused:
        names(project, pattern)
    assert repr(pattern) in str(refused.value)


@pytest.mark.parametrize("pattern", ["..", "../x", "data/../../x", "data/..", "data\\..\\x", "!../x"])
def test_patterns_that_lead_upwards_are_refused_by_name(project: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="leads out of the directory") as refused:
        names(project, pattern)
    assert repr(pattern) in str(refused.value)


@pytest.mark.parametrize("pattern", ["nothing", "data/*.json", "notes.txt/x", "~"])
def test_a_pattern_without_a_match_is_refused_by_name(project: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="nothing matches") as refused:
        names(project, "data", pattern)
    assert repr(pattern) in str(refused.value)


def test_patterns_that_only_take_away_are_refused(project: Path) -> None:
    with pytest.raises(ValueError, match=r"\['!data'\] only excludes files"):
        names(project, "!data")


@pytest.mark.parametrize("pattern", ["", "!", "a\0b"])
def test_what_is_no_pattern_is_refused(project: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern"):
        names(project, pattern)


@pytest.mark.parametrize("patterns", ["data", Path("data"), b"data"])
def test_one_text_instead_of_a_list_is_refused_with_a_hint(project: Path, patterns: object) -> None:
    with pytest.raises(TypeError, match=r"did you mean \["):
        select_files(patterns, str(project))  # type: ignore[arg-type]


@pytest.mark.parametrize("patterns", [7, [7], [b"data"], [None]])
def test_other_types_are_refused(project: Path, patterns: object) -> None:
    with pytest.raises(TypeError, match="distributed_files"):
        select_files(patterns, str(project))  # type: ignore[arg-type]


def test_paths_are_taken_as_texts_are(project: Path) -> None:
    assert list(select_files([Path("notes.txt")], str(project))) == ["notes.txt"]


def test_links_are_followed_also_to_elsewhere(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.txt").write_text("far")
    (project / "data/file").symlink_to(elsewhere / "far.txt")
    (project / "data/directory").symlink_to(elsewhere)
    found = select_files(["data"], str(project))
    assert Path(found["data/file"] or "").read_text() == "far"
    assert Path(found["data/directory/far.txt"] or "").read_text() == "far"


def test_a_link_to_a_directory_above_itself_is_refused(project: Path) -> None:
    (project / "data/deep/again").symlink_to(project / "data")
    with pytest.raises(ValueError, match=r"'data/deep/again' is a link to a directory that contains it"):
        names(project, "data")


def test_a_link_that_leads_nowhere_is_left_out_of_a_directory_and_refused_by_itself(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "data/.#lock").symlink_to("nobody@nowhere.1234")  # as editors make them
    with caplog.at_level(logging.WARNING, "parl.remote"):
        assert "data/.#lock" not in names(project, "data")
    assert "leaves out data/.#lock" in caplog.text
    with pytest.raises(ValueError, match=r"'data/\.#lock' is a broken link"):
        names(project, "data/.#lock")


def test_a_pipe_is_left_out_of_a_directory_and_refused_by_itself(project: Path) -> None:
    os.mkfifo(project / "data/pipe")
    assert "data/pipe" not in names(project, "data")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        names(project, "data/pipe")


def test_caches_and_version_control_stay_at_home(project: Path) -> None:
    for name in ("__pycache__", ".git", ".hg", ".svn"):
        (project / "data" / name).mkdir()
        (project / "data" / name / "x").touch()
    assert not [name for name in names(project, "data") if name.endswith("/x")]


def test_a_name_that_is_no_text_is_refused(project: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(project) + b"/data/\xff")).touch()
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    with pytest.raises(ValueError, match="not Unicode text"):
        names(project, "data")


def test_a_directory_that_may_not_be_read_is_an_error(project: Path) -> None:
    if not os.geteuid():
        pytest.skip("root reads everything")
    (project / "data/deep").chmod(0)
    try:
        with pytest.raises(PermissionError, match="deep"):
            names(project, "data")
    finally:
        (project / "data/deep").chmod(0o700)


def test_exclusions_take_matches_away(project: Path) -> None:
    assert names(project, "data", "!*.csv") == ["data", "data/.hidden", "data/deep", "data/empty", "data/empty/inner"]
    assert names(project, "data", "!data/deep", "!empty/", "!.hidden") == ["data", "data/a.csv", "data/b.csv"]
    assert names(project, "notes.txt", "!notes.txt") == []


@pytest.mark.parametrize(
    ("pattern", "path", "is_directory", "is_out"),
    [
        ("*.log", "a.log", False, True),
        ("*.log", "deep/er/a.log", False, True),
        ("*.log", "a.logs", False, False),
        ("*.log", "x.log/inner", False, True),
        ("cache/", "cache", False, False),
        ("cache/", "cache", True, True),
        ("cache/", "deep/cache/file", False, True),
        ("data/raw", "data/raw", True, True),
        ("data/raw", "data/raw/file", False, True),
        ("data/raw", "other/data/raw", True, False),
        ("/top", "top", True, True),
        ("/top", "deep/top", True, False),
        ("data/*", "data/x", False, True),
        ("data/*", "data", True, False),
        ("data/*.txt", "data/deep/x.txt", False, False),
        ("data/**/*.txt", "data/deep/er/x.txt", False, True),
        ("data/**/*.txt", "data/x.txt", False, True),
        ("data/**", "data/deep/er/x.txt", False, True),
        ("**/raw", "a/b/raw", True, True),
        ("x.txt", "xytxt", False, False),
        ("a?c", "abc", False, True),
        ("a?/c", "a//c", False, False),
        ("[ab].txt", "b.txt", False, True),
        ("[!ab].txt", "b.txt", False, False),
        ("[!ab].txt", "c.txt", False, True),
        ("a[", "a[", False, True),
    ],
)
def test_an_exclusion_means_what_gitignore_means_by_it(
    pattern: str, path: str, is_directory: bool, is_out: bool
) -> None:
    assert Exclusions([pattern])(path, is_directory) is is_out
