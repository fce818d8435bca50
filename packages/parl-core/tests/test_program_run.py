"""A program's run keeps its settings, and `--resume RUN` finds them again."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pytest

from parl_core.errors import CheckpointError, HyperparameterError, RunInUseError
from parl_core.training import open_run, parse_settings


@dataclass(frozen=True)
class Settings:
    """Learns to juggle."""

    balls: Annotated[int, "in the air"] = 3
    speed: Annotated[float, "of a hand"] = 0.5
    runs: Annotated[str, "folder of all runs"] = "runs"
    resume: Annotated[str, "folder of a run to continue"] = ""


@dataclass(frozen=True)
class Longer(Settings):
    clubs: Annotated[int, "besides"] = 0


def made(settings: Settings) -> Path:
    with open_run("juggle", settings) as run:
        return run.path


def test_the_folder_of_a_new_run_has_the_settings_in_it(tmp_path: Path) -> None:
    path = made(Settings(5, runs=str(tmp_path)))
    assert path.parent == tmp_path
    assert path.name.startswith("juggle-")
    written = json.loads((path / "settings.json").read_text())
    assert written["settings"] == {"balls": 5, "speed": 0.5, "runs": str(tmp_path)}


def test_nothing_is_made_before_the_folder_is_asked_for(tmp_path: Path) -> None:
    with open_run("juggle", Settings(runs=str(tmp_path))):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_has_the_settings_of_the_first_and_what_is_given_besides(tmp_path: Path) -> None:
    first = Settings(5, 2, runs=str(tmp_path))
    path = made(first)
    again = parse_settings(Settings, ["--resume", str(path)])
    assert again == replace(first, resume=str(path))
    faster = parse_settings(Settings, ["--speed", "4", "--resume", str(path)])
    assert faster == replace(again, speed=4.0)
    with open_run("juggle", faster) as run:
        assert run.resumed
        assert run.path == path
    assert parse_settings(Settings, ["--resume", str(path)]).speed == 4.0


def test_a_run_says_the_command_that_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "juggle.py"), "--balls", "4"])
    monkeypatch.chdir(tmp_path)
    with open_run("juggle", Settings(runs="runs")) as run:
        assert run.path.parent == Path("runs")
        assert run.how_to_resume == f"python juggle.py --resume {run.path}"


def test_settings_without_resume_promise_none(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Short:
        runs: Annotated[str, "folder of all runs"] = str(tmp_path)

    with open_run("juggle", Short()) as run:
        assert "--resume" not in f"{run.path} {run.how_to_resume}"


def test_a_folder_that_is_no_run_is_named_with_the_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SystemExit) as exit_info:
            parse_settings(Settings, ["--resume", str(folder)])
        assert exit_info.value.code == 2
        assert f"{folder} is not a folder of a run that can be resumed" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', '{"format": "parl-settings", "version": 99}'])
def test_damaged_settings_are_refused_by_file(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(SystemExit):
        parse_settings(Settings, ["--resume", str(tmp_path)])
    assert "settings.json does not hold the settings of a run" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="does not hold the settings"):
        open_run("juggle", Settings(resume=str(tmp_path)))


def test_settings_that_the_program_does_not_have_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(Longer(runs=str(tmp_path)))
    with pytest.raises(SystemExit):
        parse_settings(Settings, ["--resume", str(path)])
    assert "it has the settings clubs" in " ".join(capsys.readouterr().err.split())


def test_a_run_of_another_program_is_refused_and_untouched(tmp_path: Path) -> None:
    path = made(Settings(runs=str(tmp_path)))
    before = (path / "settings.json").read_bytes()
    with pytest.raises(CheckpointError, match="is a run of 'juggle', and this is 'walk'"):
        open_run("walk", Settings(resume=str(path)))
    assert (path / "settings.json").read_bytes() == before


def test_a_run_that_another_program_writes_is_refused(tmp_path: Path) -> None:
    with open_run("juggle", Settings(runs=str(tmp_path))) as run, pytest.raises(RunInUseError):
        open_run("juggle", Settings(resume=str(run.path)))


def test_settings_must_be_a_dataclass() -> None:
    with pytest.raises(HyperparameterError, match="must be a dataclass"):
        open_run("juggle", {"balls": 3})
