"""Searches for settings: their ranges, their end, and what they leave; trials are tested with each backend."""

import math
import tomllib
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from parl_core.cli._train import _read_config
from parl_core.contracts._base import unused_settings
from parl_core.errors import HyperparameterError, ParlError, RunInUseError
from parl_core.training import tuning
from parl_core.training._recipe_run import RecipeRun
from parl_core.training.recipes import RECIPES
from parl_core.training.run import RunLock
from parl_core.training.settings import contract_of
from parl_core.training.tuning import Range, default_ranges, read_range, toml_of, tune


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-5..1e-2", Range(1e-5, 1e-2, log=True)),
        ("0.1..0.4", Range(0.1, 0.4)),
        ("16..512", Range(16, 512, log=True, whole=True)),
        ("-1..1", Range(-1, 1, whole=True)),
        ("relu|tanh", Range(choices=("relu", "tanh"))),
        ("64|64,64", Range(choices=(64, (64, 64)))),
    ],
)
def test_a_range_is_read_from_its_text(text: str, expected: Range) -> None:
    assert read_range(text) == expected


@pytest.mark.parametrize("text", ["", "5", "1..", "2..1", "a..b", "0..inf", "-inf..0"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(HyperparameterError, match=r"is not a range: write LOW\.\.HIGH"):
        read_range(text)


@pytest.mark.parametrize(
    ("algorithm", "env", "names"),
    [
        ("PPO", "CartPole-v1", {"lr", "gamma", "n_steps", "minibatch_size"}),
        ("DQN", "CartPole-v1", {"lr", "gamma", "batch_size"}),
        ("SAC", "Pendulum-v1", {"lr", "gamma", "batch_size"}),
        ("IQL", "Pendulum-v1", {"lr", "discount", "batch_size"}),
    ],
)
def test_learning_rates_discount_and_batches_are_searched_by_default(algorithm: str, env: str, names: set[str]) -> None:
    found = default_ranges(algorithm, RecipeRun(algorithm, env, "torch"))
    assert set(found) == names
    assert found["lr"].low > 0
    assert found["lr"].log


@pytest.mark.parametrize("algorithm", sorted({name for name, _ in RECIPES}))
def test_the_default_search_of_every_algorithm_has_only_settings_that_it_takes(algorithm: str) -> None:
    env = "two_step" if contract_of(algorithm).TEAM else "CartPole-v1"
    if (algorithm, "*") not in RECIPES and (algorithm, "discrete") not in RECIPES:
        env = next(name for one, name in RECIPES if one == algorithm)
    asked = RecipeRun(algorithm, env, "torch")
    found = default_ranges(algorithm, asked)
    assert found
    first = {name: one.choices[0] if one.choices else one.low for name, one in found.items()}
    drawn = replace(asked, given=first).recipe
    assert drawn != asked.recipe
    for name in unused_settings(contract_of(algorithm)):
        assert getattr(drawn.loop, name, None) == getattr(asked.recipe.loop, name, None)


def test_the_best_settings_are_a_file_that_train_reads() -> None:
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=100, goal=-12.5, given={"gamma": 0.9}, module="my.envs")
    written = toml_of(asked, {"lr": 1e-5, "n_steps": 32, "network.hidden": "64,64"}, "trial 3")
    assert tomllib.loads(written) == {
        "algorithm": "PPO",
        "env": "CartPole-v1",
        "steps": 100,
        "goal": -12.5,
        "backend": "torch",
        "env_module": "my.envs",
        "settings": {"gamma": 0.9, "network": {"hidden": "64,64"}, "lr": 1e-5, "n_steps": 32},
    }
    assert written.startswith("# trial 3\n")


@pytest.mark.parametrize(
    ("given", "found", "hidden"),
    [
        ({"hidden": "16,16"}, {"network.width": 4}, [4, 4]),
        ({"network.width": 8}, {"network.hidden": "64,64"}, [64, 64]),
        ({"network.hidden": [8]}, {"depth": 3}, [8, 8, 8]),
    ],
)
def test_sizes_of_layers_beside_a_width_that_is_searched_are_once_in_the_file(
    given: dict[str, Any], found: dict[str, Any], hidden: list[int], tmp_path: Path
) -> None:
    asked = RecipeRun("PPO", "CartPole-v1", "torch", given=given)
    (path := tmp_path / "best.toml").write_text(toml_of(asked, found, "trial 3"))
    assert _read_config(path)["given"] == {"network.hidden": hidden}


def test_options_of_the_environment_are_in_the_file_as_toml_has_them() -> None:
    options = {"limit": math.inf, "goal": None, "sizes": (3, 4), "name": "\U0001f600"}
    asked = RecipeRun("PPO", "CartPole-v1", "torch", env_options=options, data="\U0001f600.npz")
    written = tomllib.loads(toml_of(asked, {}, "trial 3"))
    assert written["env_options"] == {**options, "goal": "none", "sizes": [3, 4]}
    assert written["data"] == asked.data


def test_a_part_that_is_searched_in_and_a_choice_of_none_are_in_the_file() -> None:
    asked = RecipeRun("PPO", "CartPole-v1", "torch", given={"novelty": "rnd"})
    found = {"novelty.coef": 0.5, "network.memory": None}
    settings = tomllib.loads(toml_of(asked, found, "trial 3"))["settings"]
    assert settings == {"novelty": {"coef": 0.5}, "network": {"memory": "none"}}


def test_a_search_without_optuna_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r'pip install "parl-core\[tune\]"'):
        tune(RecipeRun("PPO", "CartPole-v1", "torch"), tmp_path / "study", {"lr": Range(1e-4, 1e-2)}, 1)
    assert not (tmp_path / "study").exists()


class EndingTrials:
    """A system of actors whose trials end at once with a return of 7, as far as they are waited for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create(self, _: Any) -> Self:
        return self

    def submit(self, _: str, __: Any, folder: str) -> Future[str]:
        Path(folder).mkdir(parents=True)
        (Path(folder) / "metrics.jsonl").write_text('{"step": 5, "seconds": 1, "evaluation/return": 7.0}\n')
        future: Future[str] = Future()
        future.set_result("done")
        return future


@pytest.mark.parametrize("ended", [0, 2])
def test_an_interrupted_search_says_what_it_found_and_how_to_go_on(
    ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")

    def wait(futures: Any, _: float) -> Any:
        if not left:
            raise KeyboardInterrupt
        return [futures[left.pop()]]

    left = [0] * ended
    monkeypatch.setattr(tuning, "open_actors", lambda *_, **__: EndingTrials())
    monkeypatch.setattr(tuning, "wait_any", wait)
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        tune(asked, tmp_path / "study", {"lr": Range(1e-4, 1e-2)}, 5, workers=1)
    (told,) = interrupted.value.__notes__
    assert told.startswith(f"The search is in {tmp_path / 'study'}: {ended} of 5 trials have ended, ")
    best = tmp_path / "study" / "best.toml"
    assert (f"best score is 7.00, its settings are in {best}. " if ended else "none has a score. ") in told
    assert best.exists() == bool(ended)
    left.append(0)
    found = tune(asked, tmp_path / "study", {"lr": Range(1e-4, 1e-2)}, 1, workers=1)
    assert (found.trials, found.failed) == (ended + 1, 0)  # the trial that was interrupted has not failed


def test_a_search_of_another_request_is_not_continued(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study, asked = tmp_path / "study", RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    ranges = {"lr": Range(1e-4, 1e-2), "n_steps": Range(choices=(16, 32))}
    with pytest.raises(ParlError, match="processes must be"):  # of no trials
        tune(asked, study, ranges, 0)
    wider = {"lr": Range(1e-5, 1e-1), "n_steps": Range(choices=(16, 64))}
    for other, searched, told in (
        (RecipeRun("A2C", "CartPole-v1", "torch", steps=1000), ranges, "algorithm was PPO and is A2C"),
        (RecipeRun("PPO", "Acrobot-v1", "torch", steps=1000), ranges, "env was CartPole-v1 and is Acrobot-v1"),
        (RecipeRun("PPO", "CartPole-v1", "torch", steps=2000), ranges, "total_steps was 1000 and is 2000"),
        (replace(asked, given={"gamma": 0.9}), ranges, "gamma was 0.98 and is 0.9"),
        (asked, {"lr": Range(1e-5, 1e-1, log=True)}, "--search lr was numbers and is numbers on a logarithmic scale"),
        (asked, {"lr": Range(choices=(1e-4,))}, r"--search lr was numbers and is \[0.0001\]"),
        (asked, wider, r"--search n_steps was \[16, 32\] and is \[16, 64\]"),
    ):
        with pytest.raises(HyperparameterError, match=f"has another search: .*{told}.*--study"):
            tune(other, study, searched, 1)
    with pytest.raises(ParlError, match="processes must be"):
        tune(replace(asked, seed=3), study, {"lr": Range(1e-5, 1e-1)}, 0)


def test_a_folder_in_which_another_program_searches_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (study := tmp_path / "study").mkdir()
    other = RunLock()
    other.take(study)
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    try:
        with pytest.raises(RunInUseError, match="another program is writing into"):
            tune(asked, study, {"lr": Range(1e-4, 1e-2)}, 1)
    finally:
        other.release()
    assert not list(study.iterdir())


def test_a_search_goes_on_after_one_that_ended_within_a_line_of_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves half a line, and whatever ends the program may leave Optuna's lock."""
    pytest.importorskip("optuna")
    monkeypatch.setattr(tuning, "open_actors", lambda *_, **__: EndingTrials())
    monkeypatch.setattr(tuning, "wait_any", lambda futures, _: futures)
    asked, ranges = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000), {"lr": Range(1e-4, 1e-2)}
    study = tmp_path / "study"
    tune(asked, study, ranges, 2, workers=1)
    log, lock = study / "study.log", study / "study.log.lock"
    log.write_bytes(log.read_bytes()[:-20])
    lock.symlink_to(log)
    found = tune(asked, study, ranges, 1, workers=1)
    assert (found.trials, found.failed) == (2, 0)  # the end of the second trial was not written
    assert not lock.exists()


def test_only_evaluations_are_scores_of_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its training episodes, which come first in its log, are no points of its curve."""
    optuna = pytest.importorskip("optuna")
    study = tmp_path / "study"
    log = study / "trial-0" / "metrics.jsonl"
    written = ["", '{"step": 5, "seconds": 1, "evaluation/return": 7.0}\n']

    class Training(EndingTrials):
        def submit(self, method: str, asked: Any, folder: str) -> Future[str]:
            future = super().submit(method, asked, folder)
            log.write_text('{"step": 3, "seconds": 1, "train/return": 50.0}\n')
            return future

    def wait(futures: Any, _: float) -> Any:
        if not written:
            return futures
        with log.open("a") as file:
            file.write(written.pop(0))
        return []

    monkeypatch.setattr(tuning, "open_actors", lambda *_, **__: Training())
    monkeypatch.setattr(tuning, "wait_any", wait)
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    assert tune(asked, study, {"lr": Range(1e-4, 1e-2)}, 1, workers=1).value == 7.0
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(study / "study.log")))
    (trial,) = optuna.load_study(study_name="parl", storage=storage).trials
    assert trial.intermediate_values == {5: 7.0}


def test_a_trial_without_an_evaluation_has_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")

    class Unevaluated(EndingTrials):
        def submit(self, method: str, asked: Any, folder: str) -> Future[str]:
            future = super().submit(method, asked, folder)
            Path(folder, "metrics.jsonl").write_text('{"step": 3, "seconds": 1, "train/return": 50.0}\n')
            return future

    told: list[str] = []
    monkeypatch.setattr(tuning, "open_actors", lambda *_, **__: Unevaluated())
    monkeypatch.setattr(tuning, "wait_any", lambda futures, _: futures)
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    with pytest.raises(ParlError, match="no trial has ended with a score; no trial was evaluated"):
        tune(asked, tmp_path / "study", {"lr": Range(1e-4, 1e-2)}, 1, workers=1, report=told.append)
    assert told[0].startswith("trial 0: no evaluation within its steps")


def test_numbers_are_whole_where_their_setting_takes_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    drawn: list[Any] = []

    class Noting(EndingTrials):
        def submit(self, method: str, asked: Any, folder: str) -> Future[str]:
            drawn.append(asked["given"])
            return super().submit(method, asked, folder)

    monkeypatch.setattr(tuning, "open_actors", lambda *_, **__: Noting())
    monkeypatch.setattr(tuning, "wait_any", lambda futures, _: futures)
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    ranges = {"gae_lambda": read_range("0..1"), "n_steps": read_range("1e1..2e2"), "width": read_range("4..8")}
    tune(asked, tmp_path / "study", ranges, 1, workers=1)
    (given,) = drawn
    assert 0.0 < given["gae_lambda"] < 1.0
    assert type(given["n_steps"]) is int
    assert type(given["width"]) is int
