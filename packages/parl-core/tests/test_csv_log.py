"""Tables in CSV files."""

import csv
import threading
from pathlib import Path

import pytest

from parl.utils import CSVLogger


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_keys_of_the_first_row_are_the_header_and_order_does_not_matter(tmp_path: Path) -> None:
    with CSVLogger(tmp_path / "deep" / "progress.csv") as table:
        table.log_dict({"step": 1, "return": 0.5})
        table.log_dict({"return": 1.5, "step": 2})
    assert rows(tmp_path / "deep" / "progress.csv") == [["step", "return"], ["1", "0.5"], ["2", "1.5"]]


def test_values_with_commas_quotes_and_newlines_come_back(tmp_path: Path) -> None:
    text = 'a, "b"\nc ä'
    with CSVLogger(tmp_path / "t.csv") as table:
        table.log_dict({"note": text})
    assert rows(tmp_path / "t.csv")[1] == [text]


@pytest.mark.parametrize("other", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_other_keys_are_refused_and_not_written(tmp_path: Path, other: dict[str, int]) -> None:
    with CSVLogger(tmp_path / "t.csv") as table:
        table.log_dict({"a": 1, "b": 2})
        with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
            table.log_dict(other)
    assert len(rows(tmp_path / "t.csv")) == 2


def test_an_existing_table_is_continued(tmp_path: Path) -> None:
    for step in (1, 2):
        with CSVLogger(tmp_path / "t.csv") as table:
            table.log_dict({"step": step, "return": 0})
    assert rows(tmp_path / "t.csv") == [["step", "return"], ["1", "0"], ["2", "0"]]


def test_an_existing_file_of_other_columns_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("precious,data\n1,2\n")
    with CSVLogger(tmp_path / "t.csv") as table, pytest.raises(ValueError, match="another file"):
        table.log_dict({"step": 1})
    assert (tmp_path / "t.csv").read_text() == "precious,data\n1,2\n"


def test_flush_makes_rows_visible_to_others(tmp_path: Path) -> None:
    table = CSVLogger(tmp_path / "t.csv")
    table.log_dict({"step": 1})
    table.flush()
    assert len(rows(tmp_path / "t.csv")) == 2
    table.close()
    table.close()
    with pytest.raises(ValueError, match="closed"):
        table.log_dict({"step": 2})


def test_rows_of_many_threads_are_whole_under_one_header(tmp_path: Path) -> None:
    with CSVLogger(tmp_path / "t.csv") as table:

        def write(name: int) -> None:
            for number in range(200):
                table.log_dict({"thread": name, "number": number})

        threads = [threading.Thread(target=write, args=(name,)) for name in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    header, *written = rows(tmp_path / "t.csv")
    assert header == ["thread", "number"]
    assert sorted((int(a), int(b)) for a, b in written) == [(name, n) for name in range(5) for n in range(200)]


@pytest.mark.parametrize(
    "torn", ["step,return\r\n1,2.5\r\n2,3", 'step,return\r\n1,2.5\r\n2,"a\nb', "step,re", "step,return"]
)
def test_a_row_that_a_killed_program_left_unfinished_is_replaced(torn: str, tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text(torn, newline="")
    with CSVLogger(tmp_path / "progress.csv") as table:
        table.log_dict({"step": 3, "return": 7.5})
        table.log_dict({"step": 4, "return": 8.5})
    before = [["1", "2.5"]] if "2.5" in torn else []
    assert rows(tmp_path / "progress.csv") == [["step", "return"], *before, ["3", "7.5"], ["4", "8.5"]]


def test_an_unfinished_row_stays_where_nothing_is_written(tmp_path: Path) -> None:
    for name, content in (("table.csv", "a,b\r\n1,2\r\n3"), ("notes.txt", "buy milk")):
        (tmp_path / name).write_text(content, newline="")
        with CSVLogger(tmp_path / name) as table, pytest.raises(ValueError, match=name):
            table.log_dict({"step": 3})
        assert (tmp_path / name).read_bytes() == content.encode()
