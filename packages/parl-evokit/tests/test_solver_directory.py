"""Solver and model directories: old or new, never a mixture; damage is named."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from parl_evokit import ESAgent, _directories, _solver_dir, mlp
from parl_evokit._directories import replacing
from parl_evokit.errors import SolverError, StorageError
from parl_evokit.openai_es import ES


def make(start: float = 1.0, seed: int = 18) -> ES:
    return ES(
        np.full(5, start),
        {"solver": {"optimizer": {"type": "MOMENTUM"}, "sampling": {"gaussian_sampling": {"seed": seed}}}},
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    es = make()
    es.tell(es.ask(4), [0.0, 0.0, 0.0, 0.0])
    _solver_dir.write(tmp_path, es, _solver_dir.Progress({"segment": 123}))
    return tmp_path


def test_what_was_written_reads_back_with_its_ledger(saved: Path) -> None:
    es = make()
    progress = _solver_dir.read(saved, es)
    assert (progress.ledger, len(progress.waiting)) == ({"segment": 123}, 0)
    assert es.sampler.model_iter_id == 1
    assert int(es.state()["optimizer.steps"]) == 1


@pytest.mark.parametrize("name", ["solver.json", "solver.npz"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(SolverError, match=f"{name} .*missing"):
        _solver_dir.read(saved, make())


def test_every_flipped_byte_of_the_arrays_is_noticed(saved: Path) -> None:
    path = saved / "solver.npz"
    good = path.read_bytes()
    for place in range(0, len(good), 37):
        path.write_bytes(good[:place] + bytes((good[place] ^ 0x40,)) + good[place + 1 :])
        with pytest.raises(SolverError, match=r"solver\.npz is not the file"):
            _solver_dir.read(saved, make())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a solver's summary of format 1 or 2"),
        ('{"format": 3}', "not a solver's summary of format 1 or 2"),
        ('{"format": 1}', "lacks files, fingerprint, parameters_sha256, ledger, model_iter_id"),
    ],
)
def test_a_summary_that_is_none_is_refused(saved: Path, text: str, message: str) -> None:
    (saved / "solver.json").write_text(text)
    with pytest.raises(SolverError, match=message):
        _solver_dir.read(saved, make())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ledger", {"segment": None}),
        ("used", {"used-1.npy": None}),
        ("missing", {"segment": []}),
        ("gone", [None]),
        ("gone", 5),
        ("now_us", "noon"),
        ("history", [1]),
    ],
)
def test_a_summary_of_another_program_whose_fields_have_another_form_is_refused(
    saved: Path, name: str, value: object
) -> None:
    path = saved / "solver.json"
    summary = json.loads(path.read_text()) | {name: value}
    np.save(saved / "used-1.npy", np.zeros(1, np.uint64))
    path.write_text(json.dumps(summary | {"checksum": _solver_dir._checksum(summary)}))
    with pytest.raises(SolverError, match=r"solver\.json has .*of another form than the format's"):
        _solver_dir.read(saved, make())


def test_a_solver_of_another_model_seed_or_optimizer_is_refused(saved: Path) -> None:
    with pytest.raises(SolverError, match="other weights than the model has"):
        _solver_dir.read(saved, make(2.0))
    with pytest.raises(SolverError, match="another model, noise seed or table"):
        _solver_dir.read(saved, make(seed=19))
    adam = ES(np.full(5, 1.0), {"solver": {"optimizer": {"type": "ADAM"}}})
    with pytest.raises(SolverError, match="does not fit the solver: Adam's state"):
        _solver_dir.read(saved, adam)


def test_the_summary_is_plain_data_that_names_no_code(saved: Path) -> None:
    summary = json.loads((saved / "solver.json").read_text())
    assert summary["format"] == 2
    assert summary["ledger"] == {"segment": 123}
    assert set(summary["files"]) == {"solver.npz"}
    assert "type: MOMENTUM" in summary["config"]


def test_a_directory_is_replaced_whole_and_other_files_stay(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with replacing(target) as fresh:
        (fresh / "a").write_text("1")
        (fresh / "sub").mkdir()
        (fresh / "sub" / "b").write_text("2")
        assert not target.exists()
    with replacing(target) as fresh:
        (fresh / "a").unlink()
        (fresh / "a").write_text("new")
        assert (target / "a").read_text() == "1"
    assert (target / "a").read_text() == "new"
    assert (target / "sub" / "b").read_text() == "2"
    assert os.listdir(target.parent) == ["model"]


@pytest.mark.parametrize("exchange", [True, False])
def test_where_directories_cannot_be_exchanged_they_are_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(_directories, "_exchange", lambda a, b: False)
    for text in ("1", "2", "3"):
        with replacing(tmp_path / "d") as fresh:
            (fresh / "a").unlink(missing_ok=True)
            (fresh / "a").write_text(text)
        assert (tmp_path / "d" / "a").read_text() == text
    assert os.listdir(tmp_path) == ["d"]


def test_an_error_while_writing_leaves_everything_as_it_was(tmp_path: Path) -> None:
    with replacing(tmp_path / "d") as fresh:
        (fresh / "a").write_text("old")

    def fail() -> None:
        with replacing(tmp_path / "d") as fresh:
            (fresh / "a").unlink()
            raise OSError("the disk is full")

    with pytest.raises(StorageError, match="cannot be written: the disk is full; it is unchanged"):
        fail()
    assert (tmp_path / "d" / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["d"]


def test_the_current_directory_is_not_replaced_under_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SolverError, match="contains the current directory"), replacing(Path()):
        pass


@pytest.mark.parametrize("exchange", [True, False])
def test_a_directory_that_is_in_its_place_counts_as_written_whatever_fails_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    agent = ESAgent({}, mlp([1, 1]))
    agent.save(tmp_path / "model")
    if not exchange:
        monkeypatch.setattr(_directories, "_exchange", lambda a, b: False)
    sync = _directories.sync

    def failing(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        sync(path)

    monkeypatch.setattr(_directories, "sync", failing)
    for number in (1, 2):
        agent.update([agent.clone().add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
        agent.save(tmp_path / "model")
        assert _solver_dir.read_summary(tmp_path / "model")["model_iter_id"] == number


@pytest.mark.skipif(os.name == "nt", reason="there a directory in use cannot be removed")
def test_a_process_whose_own_directory_was_removed_can_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with replacing(tmp_path / "d") as fresh:
        (fresh / "a").write_text("1")
    assert os.listdir(tmp_path) == ["d"]
