"""A run's folder is always a new one, and an interruption says what was saved."""

import gc
import io
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from parl_core.errors import HyperparameterError, ParlError
from parl_core.training import Run

NOON = datetime(2026, 11, 21, 12, 0, 5)


def test_the_folder_is_named_by_name_and_time_and_made_at_first_use(tmp_path: Path) -> None:
    run = Run("ppo", tmp_path / "runs", started=NOON)
    assert not (tmp_path / "runs").exists()
    assert run.path == tmp_path / "runs" / "ppo-20261121-120005"
    assert run.path.is_dir()


def test_a_taken_name_gets_a_number_and_what_is_there_stays(tmp_path: Path) -> None:
    first = Run("ppo", tmp_path, started=NOON)
    (first.path / "precious").write_text("kept")
    second, third = Run("ppo", tmp_path, started=NOON), Run("ppo", tmp_path, started=NOON)
    assert [second.path.name, third.path.name] == ["ppo-20261121-120005-2", "ppo-20261121-120005-3"]
    assert list(second.path.iterdir()) == []
    assert (first.path / "precious").read_text() == "kept"


@pytest.mark.parametrize("name", ["", "a/b", "../a", "/", 5])
def test_a_name_that_is_no_single_folder_is_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(HyperparameterError, match="one part of a path"):
        Run(name, tmp_path)


def test_an_interruption_names_what_was_saved_once_and_exits_as_shells_expect(tmp_path: Path) -> None:
    out = io.StringIO()
    run = Run("ppo", tmp_path, out=out)
    run.saved(run.path / "best.ckpt", "agent, return 12")
    run.saved(run.path / "best.ckpt", "agent, return 300")
    run.tell_interrupted()
    with pytest.raises(SystemExit) as exit_info, run:
        raise KeyboardInterrupt
    assert exit_info.value.code == 130
    assert out.getvalue() == f"\nInterrupted. Saved:\n  {run.path / 'best.ckpt'}: agent, return 300\n"


def test_an_agent_is_saved_in_the_folder_and_listed(tmp_path: Path) -> None:
    class Agent:
        def save(self, path: Path) -> None:
            path.write_text("weights")

    run = Run("ppo", tmp_path)
    assert run.inventory() == "Nothing was saved yet."
    saved = run.save(Agent())
    assert saved == run.path / "agent.ckpt"
    assert saved.read_text() == "weights"
    assert run.inventory() == f"Saved:\n  {saved}: trained agent"


def test_an_interruption_before_anything_was_saved_says_so_and_leaves_no_folder(tmp_path: Path) -> None:
    out = io.StringIO()
    with pytest.raises(SystemExit), Run("ppo", tmp_path / "runs", out=out):
        raise KeyboardInterrupt
    assert out.getvalue() == "\nInterrupted. Nothing was saved yet.\n"
    assert not (tmp_path / "runs").exists()


def test_a_program_that_goes_on_after_an_interruption_has_its_garbage_collected(tmp_path: Path) -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(SystemExit), Run("ppo", tmp_path, out=io.StringIO()):
        raise KeyboardInterrupt
    assert gc.get_freeze_count() <= frozen


def test_other_errors_pass_through_with_a_note_of_what_was_saved(tmp_path: Path) -> None:
    run = Run("ppo", tmp_path, out=io.StringIO())
    with pytest.raises(LookupError) as before_saving, run:
        raise LookupError
    run.saved(run.path / "best.ckpt", "agent, return 300")
    with pytest.raises(LookupError) as after_saving, run:
        raise LookupError
    assert not hasattr(before_saving.value, "__notes__")
    assert after_saving.value.__notes__ == [f"Saved:\n  {run.path / 'best.ckpt'}: agent, return 300"]


def press_ctrl_c_and_swallow_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interruption_that_was_swallowed_is_raised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_core.training.run.SECONDS_UNTIL_AGAIN", 0.05)

    def go_on_after_an_interruption() -> None:
        with Run("ppo", tmp_path, out=io.StringIO()):
            press_ctrl_c_and_swallow_it()
            threading.Event().wait(30.0)

    with pytest.raises(SystemExit):
        go_on_after_an_interruption()


def test_a_noticed_interruption_does_not_disturb_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_core.training.run.SECONDS_UNTIL_AGAIN", 1000.0)
    with Run("ppo", tmp_path, out=io.StringIO()) as run:
        press_ctrl_c_and_swallow_it()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
        run.tell_interrupted()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "another interruption would follow"


def test_an_error_that_follows_a_swallowed_interruption_is_taken_for_one(tmp_path: Path) -> None:
    out = io.StringIO()

    def fail_after_an_interruption() -> None:
        with Run("ppo", tmp_path, out=out):
            press_ctrl_c_and_swallow_it()
            raise AttributeError("half-imported module")

    with pytest.raises(SystemExit):
        fail_after_an_interruption()
    assert "Interrupted. Nothing was saved yet." in out.getvalue()


def test_handlers_are_given_back_and_a_programs_own_handler_is_left_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with Run("ppo", tmp_path):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Run("ppo", tmp_path):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Run("x", "~/runs").path.parent == tmp_path / "runs"


def test_a_second_ctrl_c_while_the_interpreter_ends_shows_no_traceback(tmp_path: Path) -> None:
    program = """
import atexit, os, signal
from parl_core.training import Run
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
with Run("r"):
    os.kill(os.getpid(), signal.SIGINT)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == "\nInterrupted. Nothing was saved yet.\n"


def test_a_folder_that_cannot_be_made_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for run in (Run.at(tmp_path / "file" / "run"), Run("a", tmp_path / "file")):
        with pytest.raises(ParlError, match=r"the folder .*file.* of the run cannot be made: Not a directory; choose"):
            _ = run.path
