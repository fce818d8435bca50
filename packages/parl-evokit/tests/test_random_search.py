"""ARS: the paper's step in plain float64, and what it finds."""

from typing import Any

import numpy as np
import pytest

from parl_evokit import ARS, ES, ConfigError, ESAgent, mlp


def settings(top_k: int = 4, lr: float = 0.02, std: float = 0.05) -> dict[str, Any]:
    return {
        "keys": "COUNTER",
        "solver": {
            "type": "ARS",
            "optimizer": {"type": "SGD", "base_lr": lr},
            "sampling": {"gaussian_sampling": {"std": std}},
            "update": {"top_k": top_k},
        },
    }


def test_one_update_is_the_papers_step() -> None:
    es = ARS(np.zeros(40), settings(top_k=3, lr=0.5))
    infos = es.ask(10)
    rewards = np.array([1.0, 4.0, 9.0, 2.0, 0.0, -5.0, 3.0, 3.5, 7.0, 6.0])
    z = np.stack([es.sampler.noise.units(info.noise_key, 0, 40) / 4096 for info in infos])
    plus, minus = rewards[::2], rewards[1::2]
    best = np.argsort(-np.maximum(plus, minus))[:3]
    deviation = np.concatenate([plus[best], minus[best]]).std()
    expected = 0.5 / (3 * deviation) * ((plus - minus)[best] @ z[::2][best])
    es.tell(infos, rewards)
    assert es.mean == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_its_step_does_not_depend_on_the_std_of_the_noise() -> None:
    means = []
    for std in (0.01, 1.0):
        es = ARS(np.zeros(40), settings(std=std))
        es.tell(es.ask(10), np.arange(10.0))
        means.append(es.mean)
    assert (means[0] == means[1]).all()


def test_it_descends_to_the_optimum_of_the_sphere() -> None:
    es = ARS(np.full(20, 1.0), settings(lr=0.02))
    for _ in range(400):
        infos = es.ask(16)
        es.tell(infos, [-float((x.astype(np.float64) ** 2).sum()) for x in es.candidates(infos)])
    assert float((es.mean**2).sum()) < 0.05


def test_fewer_directions_than_asked_for_and_halves_alone_will_do() -> None:
    es = ARS(np.zeros(10), settings(top_k=50))
    infos = es.ask(6)
    report = es.tell(infos[:3], [1.0, 2.0, 4.0])
    assert (report.used, report.pairs) == (3, 1)
    assert np.abs(es.mean).max() > 0


def test_its_samples_are_those_of_basic_es_and_the_agent_takes_it() -> None:
    basic = settings()
    basic["solver"] = {**basic["solver"], "type": "BASIC_ES"}
    assert ARS(np.zeros(5), settings()).ask(4) == ES(np.zeros(5), basic).ask(4)
    agent = ESAgent(settings(), mlp([4, 3, 2]))
    clone = agent.clone()
    assert agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0]).used == 4


@pytest.mark.parametrize(("stale", "top_k", "late_samples"), [("AUTO", 64, 2), ("POOLED", 64, 2), ("POOLED", 4, 16)])
def test_late_pairs_leave_the_length_of_the_step(stale: str, top_k: int, late_samples: int) -> None:
    steps = []
    for late in (0, late_samples):
        config = settings(top_k=top_k)
        config["solver"]["update"]["stale"] = stale
        es = ARS(np.ones(100), config)
        first = es.ask(64)
        rewards = [-float(np.square(x).sum()) for x in es.candidates(first)]
        es.tell(first[: 64 - late], rewards[: 64 - late])
        second, before = es.ask(64), es.mean
        again = [-float(np.square(x).sum()) for x in es.candidates(second)]
        report = es.tell([*second, *first[64 - late :]], [*again, *rewards[64 - late :]])
        assert report.stale == ({1: late} if late else {})
        steps.append(float(np.linalg.norm(es.mean - before)))
    assert steps[1] == pytest.approx(steps[0], rel=0.2)


def test_no_direction_at_all_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="top_k must be 1 or more, not 0"):
        ARS(np.zeros(3), settings(top_k=0))
