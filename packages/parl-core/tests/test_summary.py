"""The summary: what the PARL 1.x manual's programs write is in the event file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from parl.utils import logger, summary


@pytest.fixture(autouse=True)
def _close_run() -> Iterator[None]:
    yield
    summary.close()
    logger.close()


def read_events(directory: Path) -> list[Any]:
    """Read all event files of a directory: records of length (8 bytes), CRC (4), an Event, CRC (4)."""
    values = []
    for file in sorted(directory.rglob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            values += [(event.step, value) for value in event.summary.value]
            data = data[16 + length :]
    return values


def test_the_manuals_scalar_program(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    x = range(100)
    for i in x:
        summary.add_scalar("y=2x", i * 2, i)
    summary.flush()
    events = read_events(tmp_path)
    assert [(step, value.simple_value) for step, value in events] == [(i, 2.0 * i) for i in range(100)]
    assert len({value.tag for _, value in events}) == 1


def test_the_manuals_histogram_program(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    for i in range(10):
        x = np.random.random(1000)
        summary.add_histogram("distribution centers", x + i, i)
    summary.close()
    histograms = [(step, value.histo) for step, value in read_events(tmp_path)]
    assert [step for step, _ in histograms] == list(range(10))
    for step, histogram in histograms:
        assert histogram.num == 1000
        assert step <= histogram.min < histogram.max <= step + 1
        assert histogram.sum / 1000 == pytest.approx(step + 0.5, abs=0.1)


def test_histogram_counts_are_in_the_right_bins(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    summary.add_histogram("signs", np.array([-1.0, -1.0, 0.5, 0.5, 0.5, 1e30]))
    summary.flush()
    ((_, value),) = read_events(tmp_path)
    bins = [(limit, count) for limit, count in zip(value.histo.bucket_limit, value.histo.bucket, strict=True) if count]
    assert sum(count for limit, count in bins if limit < 0) == 2
    assert sum(count for limit, count in bins if 0.5 < limit < 0.6) == 3


@pytest.mark.parametrize("values", [[1.0, 2.0, 1e30, -1e25], [1e25], [-1e300, 1e300], [3.4e38] * 3])
def test_a_histogram_counts_numbers_of_any_size(tmp_path: Path, values: list[float]) -> None:
    logger.set_dir(tmp_path)
    summary.add_histogram("large", np.array(values))
    summary.flush()
    ((_, value),) = read_events(tmp_path)
    assert sum(value.histo.bucket) == len(values)


FORKING_PROGRAM = """
import os
from parl.utils import logger, summary
logger.set_dir(".")
summary.add_scalar("parent", 1.0, 0)
summary.add_scalar("parent", 2.0, 1)
child = os.fork()
if child == 0:
    summary.add_scalar("child", 2.0, 0)
else:
    assert os.waitpid(child, 0)[1] == 0
    summary.add_scalar("parent", 3.0, 2)
"""


def test_a_forked_child_writes_a_file_of_its_own_and_the_end_of_a_program_writes_everything(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", FORKING_PROGRAM], cwd=tmp_path, timeout=240, check=True)
    written = sorted((value.tag, step, value.simple_value) for step, value in read_events(tmp_path))
    assert written == [("child", 0, 2.0), ("parent", 0, 1.0), ("parent", 1, 2.0), ("parent", 2, 3.0)]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


class FakeTensor:
    """Behaves as a torch tensor on another device: numpy cannot read it before `detach` and `cpu`."""

    def __init__(self, values: Any, moved: frozenset[str] = frozenset()) -> None:
        self.values, self.moved = values, moved

    def detach(self) -> "FakeTensor":
        return FakeTensor(self.values, self.moved | {"detach"})

    def cpu(self) -> "FakeTensor":
        return FakeTensor(self.values, self.moved | {"cpu"})

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        assert self.moved == {"detach", "cpu"}
        return np.asarray(self.values, dtype)


def test_tensors_are_taken_from_any_device(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    summary.add_scalar("loss", FakeTensor([1.5]), 1)
    summary.add_histogram("weights", FakeTensor([[1.0, 3.0]]), 1)
    summary.flush()
    (_, loss), (_, weights) = read_events(tmp_path)
    assert loss.simple_value == 1.5
    assert weights.histo.sum == 4.0


def test_texts_pictures_and_settings(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    summary.add_text("notes", "first *try*", 3)
    summary.add_image("screen", np.zeros((3, 6, 4), np.uint8), 4)
    summary.add_image("frame", np.zeros((6, 4)), 4, dataformats="HW")
    summary.add_hparams({"lr": 1e-3, "layers": [64, 64]}, {"return": 200.0}, 5)
    summary.close()
    values = {value.tag: value for _, value in read_events(tmp_path)}
    assert values["notes/text_summary"].tensor.string_val == [b"first *try*"]
    assert (values["screen"].image.height, values["screen"].image.width) == (6, 4)
    assert (values["frame"].image.height, values["frame"].image.width) == (6, 4)
    assert values["return"].simple_value == 200.0
    assert b"[64, 64]" in values["_hparams_/session_start_info"].metadata.plugin_data.content


def test_without_a_directory_a_new_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary.add_scalar("return", 1.0)
    summary.close()
    assert len(read_events(tmp_path / "train_log")) == 1


def test_a_new_directory_of_the_logger_gets_the_next_events(tmp_path: Path) -> None:
    for name in ("first", "second"):
        logger.set_dir(tmp_path / name)
        summary.add_scalar(name, 1.0, 0)
    summary.flush()
    for name in ("first", "second"):
        assert [value.tag for _, value in read_events(tmp_path / name)] == [name]


def test_after_close_a_new_file_is_begun(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    summary.add_scalar("a", 1.0, 0)
    summary.close()
    summary.add_scalar("b", 2.0, 0)
    summary.close()
    assert sorted(value.tag for _, value in read_events(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_a_histogram_of_nothing_or_of_nan_is_refused(tmp_path: Path, values: list[float]) -> None:
    logger.set_dir(tmp_path)
    with pytest.raises(ValueError, match="'gradients' needs finite values"):
        summary.add_histogram("gradients", values)


def test_a_missing_tensorboardx_names_the_install_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=r'pip install "parl-core\[train\]"'):
        summary.add_scalar("a", 1.0)
    assert list(tmp_path.iterdir()) == []
