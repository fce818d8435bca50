"""Rewards that come later, elsewhere, more than once, or never: joined by sample, across segments and updates."""

import sys
from pathlib import Path
from types import FrameType

import pytest

from parl_evokit import LogWriter, NothingToUpdate, SamplingInfo, mlp, read_log
from parl_evokit._samples import Samples
from parl_evokit.agent import ESAgent
from parl_evokit.log._reader import joined_rewards

CONFIG = {"keys": "COUNTER", "solver": {"optimizer": {"type": "ADAM"}, "update": {"max_age": 2}}}


@pytest.fixture
def agent() -> ESAgent:
    return ESAgent(CONFIG, mlp([3, 2]))


def serve(agent: ESAgent, log: Path, n: int) -> list[SamplingInfo]:
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(n)]
    with LogWriter(log) as writer:
        for info in infos:
            writer.sampled(info)
    return infos


def reward(log: Path, infos: list[SamplingInfo], value: float = 1.0) -> None:
    with LogWriter(log) as writer:
        for info in infos:
            writer.reward(info, value)


def test_a_sample_waits_across_updates_until_its_reward_comes(agent: ESAgent, tmp_path: Path) -> None:
    infos = serve(agent, tmp_path, 5)
    reward(tmp_path, infos[:3])
    _, contents = agent.update_from_log(tmp_path)
    assert contents.waiting.infos() == infos[3:]
    serve(agent, tmp_path, 1)
    reward(tmp_path, [infos[3], *serve(agent, tmp_path, 2)])
    report, contents = agent.update_from_log(tmp_path)
    assert report.stale == {1: 1}
    assert contents.pending == 2  # the last of the first model, and the one of the second
    assert contents.expired == 0


def test_samples_are_not_waited_for_once_their_model_is_too_old(agent: ESAgent, tmp_path: Path) -> None:
    serve(agent, tmp_path, 4)
    pending, expired = [], []
    for _ in range(4):
        reward(tmp_path, serve(agent, tmp_path, 2))
        _, contents = agent.update_from_log(tmp_path)
        pending.append(contents.pending)
        expired.append(contents.expired)
    assert pending == [4, 4, 0, 0]
    assert expired == [0, 0, 4, 0]


def test_what_waits_is_saved_with_the_solver(agent: ESAgent, tmp_path: Path) -> None:
    infos = serve(agent, tmp_path / "log", 3)
    reward(tmp_path / "log", infos[:2])
    agent.update_from_log(tmp_path / "log")
    agent.save(tmp_path / "model")
    restored = ESAgent()
    restored.load_config(CONFIG)
    restored.load_inference_model(tmp_path / "model", model=mlp([3, 2]))
    restored.load_solver(tmp_path / "model")
    reward(tmp_path / "log", [SamplingInfo(infos[2].key), *serve(restored, tmp_path / "log", 2)], 3.0)
    report, contents = restored.update_from_log(tmp_path / "log")
    assert (report.used, report.stale, contents.pending) == (3, {1: 1}, 0)
    restored.save(tmp_path / "model")
    assert not (tmp_path / "model" / "waiting.npz").exists()


def test_the_key_alone_is_enough_to_log_a_reward(agent: ESAgent, tmp_path: Path) -> None:
    first = agent.clone()
    agent.update([first.add_noise(), first.add_noise()], [1.0, 2.0])
    infos = serve(agent, tmp_path, 3)
    reward(tmp_path, [SamplingInfo(info.key) for info in infos], 4.0)
    contents = read_log(tmp_path)
    assert contents.infos == infos
    assert contents.pending == 0


def test_a_key_that_several_models_served_names_none_of_them(tmp_path: Path) -> None:
    samples = [SamplingInfo([1, 2], 3, 9), SamplingInfo([1, 2], 4, 9)]
    with LogWriter(tmp_path) as writer:
        for info in samples:
            writer.sampled(info)
        writer.reward(SamplingInfo([1, 2]), 1.0)
    contents = read_log(tmp_path)
    assert contents.infos == [SamplingInfo([1, 2])]
    assert contents.pending == 2


def test_several_rewards_of_a_sample_from_several_processes_count_by_their_mean(agent: ESAgent, tmp_path: Path) -> None:
    infos = serve(agent, tmp_path, 2)
    for value in (1.0, 2.0, 6.0):
        reward(tmp_path, [infos[0]], value)
    reward(tmp_path, [infos[1]], 5.0)
    report, contents = agent.update_from_log(tmp_path)
    assert contents.rewards == [3.0, 5.0]
    assert (report.used, report.repeated, report.mean_reward) == (2, 2, 4.0)


def test_an_update_that_cannot_be_keeps_what_waits(agent: ESAgent, tmp_path: Path) -> None:
    infos = serve(agent, tmp_path, 3)
    with pytest.raises(NothingToUpdate):
        agent.update_from_log(tmp_path)
    reward(tmp_path, infos[:2])
    assert agent.update_from_log(tmp_path)[1].pending == 1


def test_control_traffic_is_not_waited_for(agent: ESAgent, tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        writer.sampled(agent.clone().add_noise(evaluate=True))
    assert read_log(tmp_path).pending == 0


def test_key_and_model_without_a_fingerprint_are_enough_for_the_sample_that_was_served(tmp_path: Path) -> None:
    samples = [SamplingInfo([1, 2], 3, 9), SamplingInfo([1, 2], 4, 9), SamplingInfo([5, 6], 4, 9)]
    with LogWriter(tmp_path) as writer:
        for info in samples:
            writer.sampled(info)
        for info in samples[1:]:
            writer.reward(SamplingInfo(info.key, info.model_iter_id), 1.0)
        writer.reward(SamplingInfo([5, 6], 3), 2.0)  # which nobody served
    contents = read_log(tmp_path)
    assert contents.infos == [SamplingInfo([5, 6], 3), *samples[1:]]
    assert contents.waiting.infos() == samples[:1]


def functions_run(served: Samples, rewarded: Samples) -> int:
    """Return the number of functions that join these rewards."""
    count = 0

    def counting(_frame: FrameType, event: str, _function: object) -> None:
        nonlocal count
        count += event.endswith("call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        joined_rewards(served, rewarded)
    finally:
        sys.setprofile(before)
    return count


def test_rewards_without_a_fingerprint_are_joined_at_once_whatever_the_number_of_models() -> None:
    def samples(models: int, fingerprint: int) -> Samples:
        infos = [SamplingInfo([1, n], 1 + n % models, fingerprint) for n in range(200)]
        return Samples.of(infos, [1.0] * 200)

    assert len(joined_rewards(samples(100, 9), samples(100, 0))[1]) == 0
    assert functions_run(samples(100, 9), samples(100, 0)) <= functions_run(samples(2, 9), samples(2, 0)) + 20
    nothing = Samples.of([], [])
    assert functions_run(nothing, samples(100, 0)) < functions_run(samples(2, 9), samples(2, 0))
