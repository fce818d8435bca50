"""The logger: deletes nothing, says everything once, and leaves the program's own logging alone."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_core import logger


@pytest.fixture(autouse=True)
def _close_run() -> Iterator[None]:
    yield
    logger.close()
    logger.set_level(logger.INFO)


def run_program(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that has not set up logging."""
    (folder / "program.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )


def test_importing_it_does_nothing(tmp_path: Path) -> None:
    done = run_program(
        "import logging, parl_core.logger\n"
        "assert logging.getLogger('parl').handlers == [] == logging.getLogger().handlers\n"
        "assert logging.getLogger('parl').level == logging.NOTSET\n",
        tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert sorted(os.listdir(tmp_path)) == ["program.py"]


def test_messages_appear_once_with_their_own_line_and_without_colour_in_a_pipe(tmp_path: Path) -> None:
    done = run_program(
        "from parl.utils import logger\nlogger.info('Episode %d, Reward Sum %s.', 1, 20.0)\nlogger.debug('hidden')\n",
        tmp_path,
    )
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "@program.py:2] Episode 1, Reward Sum 20.0." in done.stderr
    assert "\x1b" not in done.stderr


def test_a_program_that_sets_up_logging_gets_the_messages_instead(tmp_path: Path) -> None:
    done = run_program(
        "import logging\n"
        "from parl_core import logger\n"
        "logger.info('before')\n"
        "logging.basicConfig(format='MINE %(message)s')\n"
        "logger.info('after')\n"
        "logging.getLogger('other').warning('other')\n",
        tmp_path,
    )
    lines = done.stderr.splitlines()
    assert lines[0].endswith("before")
    assert lines[1:] == ["MINE after", "MINE other"]


def test_the_handler_that_importing_paddle_gives_the_root_logger_does_not_count(tmp_path: Path) -> None:
    done = run_program(
        "import logging\n"
        "from parl_core import logger\n"
        "of_paddle = logging.StreamHandler()\n"
        "of_paddle.setFormatter(logging.Formatter("
        "'[%(asctime)-15s] [%(levelname)8s] %(filename)s:%(lineno)s - %(message)s'))\n"
        "logger.info('before')\n"
        "logging.getLogger().addHandler(of_paddle)\n"
        "logger.info('beside')\n"
        "own = logging.StreamHandler()\n"
        "own.setFormatter(logging.Formatter('own: %(message)s'))\n"
        "logging.getLogger().addHandler(own)\n"
        "logger.info('chosen')\n",
        tmp_path,
    )
    before, beside, *chosen = done.stderr.splitlines()
    assert before.endswith("@program.py:5] before")
    assert beside.endswith("@program.py:7] beside")
    assert chosen[-1] == "own: chosen"


def test_a_level_that_the_program_chose_stays(tmp_path: Path) -> None:
    done = run_program(
        "import logging\n"
        "logging.getLogger('parl').setLevel(logging.ERROR)\n"
        "from parl_core import logger\n"
        "logger.info('hidden')\n"
        "logger.error('shown')\n",
        tmp_path,
    )
    assert done.stderr.count("\n") == 1
    assert "ERR shown" in done.stderr


def test_set_dir_writes_a_file_and_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.log").write_text("of an earlier run\n")
    (tmp_path / "model.npz").write_text("precious")
    logger.set_dir(tmp_path)
    logger.warning("now")
    assert (tmp_path / "model.npz").read_text() == "precious"
    lines = (tmp_path / "log.log").read_text().splitlines()
    assert lines[0] == "of an earlier run"
    assert lines[1].endswith("WRN now")
    assert f"@{Path(__file__).name}:" in lines[1]
    assert logger.get_dir() == str(tmp_path)


def test_a_second_directory_takes_over_from_the_first(tmp_path: Path) -> None:
    for name in ("first", "second"):
        logger.set_dir(tmp_path / name)
        logger.info(name)
    assert "second" not in (tmp_path / "first" / "log.log").read_text()
    assert "first" not in (tmp_path / "second" / "log.log").read_text()


def test_a_directory_that_cannot_be_made_leaves_the_one_before(tmp_path: Path) -> None:
    logger.set_dir(tmp_path / "good")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        logger.set_dir(tmp_path / "file" / "below")
    logger.info("still here")
    assert "still here" in (tmp_path / "good" / "log.log").read_text()


def test_the_level_decides_what_is_written(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    logger.set_level("WARNING")
    logger.info("hidden")
    logger.setLevel(logger.DEBUG)
    logger.debug("shown")
    text = (tmp_path / "log.log").read_text()
    assert "hidden" not in text
    assert "DBG shown" in text


def test_messages_also_go_to_standard_output_until_the_handler_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logger.add_stdout_handler()
    logger.info("shown")
    logger.remove_handler(handler)
    logger.info("hidden")
    printed = capsys.readouterr().out
    assert "shown" in printed
    assert "hidden" not in printed


def test_exceptions_come_with_their_traceback(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)
    try:
        raise KeyError("key 7")
    except KeyError:
        logger.exception("it failed")
    text = (tmp_path / "log.log").read_text()
    assert "ERR it failed" in text
    assert text.count("KeyError: 'key 7'") == 1


def test_messages_of_many_threads_all_arrive_whole(tmp_path: Path) -> None:
    logger.set_dir(tmp_path)

    def talk(name: str) -> None:
        for number in range(200):
            logger.info("%s says %d", name, number)

    threads = [threading.Thread(target=talk, args=(f"t{i}",), name=f"thread-{i}") for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = [line.split("] ")[1] for line in (tmp_path / "log.log").read_text().splitlines()]
    assert sorted(said) == sorted(f"t{i} says {number}" for i in range(5) for number in range(200))


def test_every_run_gets_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directories = {logger.auto_set_dir(action) for action in (None, "n", "d", None)}
    assert len(directories) == 4
    for directory in directories:
        assert (tmp_path / directory / "log.log").exists()
        assert Path(directory).parts[0] == "train_log"


def test_keeping_uses_the_same_directory_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = logger.auto_set_dir("k")
    logger.info("one")
    assert logger.auto_set_dir("k") == first
    logger.info("two")
    assert (tmp_path / first / "log.log").read_text().count("\n") == 2
    with pytest.raises(FileExistsError, match="move it away"):
        logger.auto_set_dir("q")


def test_an_unknown_action_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="'x'"):
        logger.auto_set_dir("x")
    assert os.listdir(tmp_path) == []


def test_the_root_logger_is_never_touched(tmp_path: Path) -> None:
    before = (logging.getLogger().handlers[:], logging.getLogger().level)
    logger.set_dir(tmp_path)
    logger.error("message")
    assert (logging.getLogger().handlers, logging.getLogger().level) == before


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    logger.warning("careful")
    assert "\x1b[33mWRN \x1b[0mcareful" in capsys.readouterr().err
