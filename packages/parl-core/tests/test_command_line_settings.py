"""A settings dataclass is a command line whose help is the fields' own text."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from parl_core.errors import HyperparameterError
from parl_core.training import parse_settings


@dataclass(frozen=True)
class Settings:
    """Learns to juggle."""

    seed: Annotated[int, "of everything, 100% of it"] = 0
    learning_rate: Annotated[float, "of Adam"] = 1e-3
    backend: Annotated[str, "torch or paddle"] = ""
    smoke: Annotated[bool, "a few updates only"] = False
    draw: Annotated[bool, "draw the curve"] = True


@dataclass(frozen=True)
class Unexplained:
    seed: int = 0


def test_defaults_hold_where_nothing_is_given() -> None:
    assert parse_settings(Settings, []) == Settings()


def test_every_kind_of_field_is_read_from_its_flag() -> None:
    arguments = ["--seed", "3", "--learning-rate", "0.5", "--backend", "torch", "--smoke", "--no-draw"]
    assert parse_settings(Settings, arguments) == Settings(3, 0.5, "torch", True, False)


def test_help_shows_docstring_texts_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_settings(Settings, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert exit_info.value.code == 0
    for text in (
        "Learns to juggle.",
        "of everything, 100% of it (default: 0)",
        "--learning-rate FLOAT",
        "a few updates",
    ):
        assert text in shown


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--sed", "3"], ["3"]])
def test_a_wrong_argument_exits_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_settings(Settings, arguments)
    assert exit_info.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_field_without_a_text_is_refused_by_name() -> None:
    with pytest.raises(HyperparameterError, match="'seed' must be annotated"):
        parse_settings(Unexplained, [])


def test_underscores_in_a_flag_are_dashes_and_in_a_value_stay() -> None:
    read = parse_settings(Settings, ["--learning_rate=0.25", "--backend", "my_backend", "--no_draw"])
    assert read == Settings(learning_rate=0.25, backend="my_backend", draw=False)
