"""Mistakes of users and their services: each has a clear error or a report, and nothing else changes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit import (
    ConfigError,
    InvalidReward,
    LayoutMismatch,
    LogWriter,
    NothingToUpdate,
    SamplingInfo,
    SolverError,
    mlp,
)
from parl_evokit.agent import ESAgent

KINDS = ["BASIC_ES", "ARS", "PGPE", "SNES", "CMA_ES", "SEP_CMA_ES", "GA", "CEM", "LM_MA_ES", "CR_FM_NES"]


def config(kind: str = "BASIC_ES", **gaussian: Any) -> dict[str, Any]:
    cma = {"population": 6}
    return {
        "keys": "COUNTER",
        "solver": {"type": kind, "sampling": {"gaussian_sampling": gaussian, "cma_sampling": cma}},
    }


def make(kind: str = "BASIC_ES", sizes: tuple[int, ...] = (3, 2), **gaussian: Any) -> ESAgent:
    return ESAgent(config(kind, **gaussian), mlp(sizes))


def sampled(agent: ESAgent, n: int = 6) -> list[SamplingInfo]:
    clone = agent.clone()
    return [clone.add_noise() for _ in range(n)]


def state(agent: ESAgent) -> tuple[int, bytes]:
    flat = b"".join(array.tobytes() for array in agent.parameters().values())
    return agent.model_iter_id, flat


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rewards", [[], [1.0]], ids=["zero samples", "one sample"])
def test_too_few_samples_change_nothing(kind: str, rewards: list[float]) -> None:
    agent = make(kind)
    before = state(agent)
    with pytest.raises(NothingToUpdate, match=rf"{len(rewards)} samples could be used, [26] are needed"):
        agent.update(sampled(agent, len(rewards)), rewards)
    assert state(agent) == before


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_give_no_direction_and_no_nan(kind: str) -> None:
    agent = make(kind)
    before = state(agent)[1]
    report = agent.update(sampled(agent), [3.0] * 6)
    assert report.used == 6
    assert all(np.isfinite(array).all() for array in agent.parameters().values())
    if kind in {"BASIC_ES", "ARS", "PGPE", "SNES", "CEM"}:
        assert state(agent)[1] == before


@pytest.mark.parametrize("kind", KINDS)
def test_one_sample_is_enough_where_one_is_asked_for_and_teaches_nothing(kind: str) -> None:
    if kind in {"CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES"}:
        pytest.skip("CMA waits for its population, two or more")
    settings = config(kind)
    settings["solver"]["update"] = {"min_samples": 1}
    agent = ESAgent(settings, mlp([3, 2]))
    agent.update(sampled(agent, 1), [5.0])
    assert all(np.isfinite(array).all() for array in agent.parameters().values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_rewards_that_are_no_numbers_are_set_aside_and_the_others_count(value: float) -> None:
    agent, other = make(), make()
    infos = sampled(agent)
    report = agent.update(infos, [1.0, 2.0, value, 4.0, 5.0, 6.0])
    assert (report.used, report.set_aside.not_finite) == (5, 1)
    rest = [infos[0], infos[1], *infos[3:]]
    assert other.update(rest, [1.0, 2.0, 4.0, 5.0, 6.0]).parameters_sha256 == report.parameters_sha256


@pytest.mark.parametrize(
    "foreign",
    [make(sizes=(3, 4, 2)), make(seed=99), make(cached=True, cache_size=4096)],
    ids=["model", "seed", "table"],
)
def test_records_of_another_model_seed_or_table_are_set_aside(foreign: ESAgent, tmp_path: Path) -> None:
    agent = make()
    with LogWriter(tmp_path) as log:
        for info in sampled(foreign):
            log.reward(info, 9.0)
        for number, info in enumerate(sampled(agent)):
            log.reward(info, float(number))
    report, _ = agent.update_from_log(tmp_path)
    assert (report.used, report.set_aside.foreign) == (6, 6)
    expected = make()
    assert expected.update(sampled(expected), np.arange(6.0)).parameters_sha256 == report.parameters_sha256


def test_duplicates_of_a_segment_count_once_and_repeated_rewards_by_their_mean(tmp_path: Path) -> None:
    agent, other = make(), make()
    infos = sampled(agent)
    with LogWriter(tmp_path) as log:
        for number, info in enumerate(infos):
            log.reward(info, float(number))
    (segment,) = tmp_path.glob("*.evl")
    (tmp_path / "copy.evl").write_bytes(segment.read_bytes())
    report, _ = agent.update_from_log([tmp_path, tmp_path, segment])
    assert (report.used, report.repeated) == (6, 0)
    repeated = other.update([*infos, *infos], [*np.arange(6.0), *np.arange(6.0)])
    assert (repeated.used, repeated.repeated) == (6, 6)
    assert repeated.parameters_sha256 == report.parameters_sha256


def test_samples_and_rewards_must_be_as_many() -> None:
    agent = make()
    before = state(agent)
    with pytest.raises(InvalidReward, match="6 samples came with 5 rewards"):
        agent.update(sampled(agent), [1.0] * 5)
    assert state(agent) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: agent.init_solver(), "init_solver.. needs a model: call load_inference_model"),
        (lambda agent: agent.clone(), "clone.. needs a model"),
        (lambda agent: agent.update([], []), "update.. needs a model"),
        (lambda agent: agent.update_from_log("log"), "update_from_log.. needs a model"),
        (lambda agent: agent.replay_log("log", "model"), "replay_log.. needs a model"),
        (lambda agent: agent.load_solver("model"), "load_solver.. needs a model"),
        (lambda agent: agent.save("model"), "save.. needs a model"),
        (lambda agent: agent.load_inference_model("model"), "needs model=: files contain weights"),
    ],
)
def test_a_call_that_comes_before_another_names_it(call: Callable[[ESAgent], object], message: str) -> None:
    with pytest.raises(SolverError, match=message):
        call(ESAgent())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("solver {\n  tipe: BASIC_ES\n}", r"line 2.*tipe.*did you mean type\?"),
        ("solver {\n optimizer {\n  base_lr: fast } }", "line 3.*base_lr"),
        ("solver { optimizer { base_lr: -1 } }", "base_lr must be above 0, not -1"),
        ("solver { type: BASIC_ES type: GA }", "type.*repeated|type.*twice"),
        ("solver { update { stale: SOMETIMES } }", "stale.*GROUPED.*IMPORTANCE"),
        ("solver {", "line 1"),
    ],
)
def test_a_wrong_configuration_says_where_and_what(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.prototxt").write_text(text)
    with pytest.raises(ConfigError, match=message):
        ESAgent(tmp_path / "config.prototxt", mlp([3, 2]))


def test_a_model_whose_shape_has_changed_is_refused_with_both_shapes(tmp_path: Path) -> None:
    make().save(tmp_path / "model")
    agent = ESAgent()
    agent.load_config(config())
    with pytest.raises(LayoutMismatch, match=r"is of another model: .*\(3, 5\).*\(3, 2\)|missing"):
        agent.load_inference_model(tmp_path / "model", mlp([3, 5]))
    mlp([3, 2], seed=8).save(tmp_path / "model")
    agent.load_inference_model(tmp_path / "model", mlp([3, 2]))
    with pytest.raises(SolverError, match="belongs to other weights"):
        agent.load_solver(tmp_path / "model")


def test_a_solver_file_with_any_byte_flipped_is_refused_or_the_same(tmp_path: Path) -> None:
    agent = make()
    agent.update(sampled(agent), np.arange(6.0))
    agent.save(tmp_path / "model")
    path = tmp_path / "model" / "solver.json"
    whole = path.read_bytes()
    expected = json.loads(whole)
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 0x04,)) + whole[place + 1 :])
        restored = ESAgent()
        restored.load_config(config())
        restored.load_inference_model(tmp_path / "model", mlp([3, 2]))
        try:
            restored.load_solver(tmp_path / "model")
        except SolverError:
            continue
        assert json.loads(path.read_bytes()) == expected  # white space


def test_keys_that_were_never_given_are_set_aside() -> None:
    agent = make()
    strange = [SamplingInfo([0, 1], 0, 0), SamplingInfo([1], 0, 0), SamplingInfo([1, 2, 3], 0, 0)]
    report = agent.update([*strange, *sampled(agent)], np.arange(9.0))
    assert (report.used, report.set_aside.bad_key) == (6, 3)


def test_samples_of_models_to_come_are_orphans() -> None:
    agent = make()
    early = [SamplingInfo(info.key, 5, info.fingerprint) for info in sampled(agent, 2)]
    report = agent.update([*early, *sampled(agent)], np.arange(8.0))
    assert (report.used, report.set_aside.orphan) == (6, 2)
