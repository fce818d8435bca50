"""The last lines of a log, as reports of deaths show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parl_remote._system.processes import tail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("one", ("one",)),
        ("one\ntwo\nthree\n", ("two", "three")),
        ("a\r\n\nlast", ("", "last")),
        (b"\xff\xfe\n".decode("latin1"), ("ÿþ",)),
    ],
)
def test_the_last_lines_are_given_oldest_first(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "log").write_text(text)
    assert tail(tmp_path / "log", 2) == expected


def test_fifty_lines_of_any_length_are_fifty_and_long_ones_are_cut(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{number:04} {'x' * 1000}\n" for number in range(1000)))
    lines = tail(tmp_path / "log", 50)
    assert [int(line[:4]) for line in lines] == list(range(950, 1000))
    assert {line[5:] for line in lines} == {"x" * 495 + "... (505 more)"}


def test_one_endless_line_is_cut_and_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff" * 2**20)
    (line,) = tail(tmp_path / "log", 50)
    assert line.startswith("\ufffd" * 500 + "... (")


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert tail(tmp_path / "none", 50) == ()
