"""Learning rate and deviation follow their schedules, in saved searches too; defaults solve a sphere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit import ARS, ES, PGPE, Config, ConfigError, ESAgent, mlp
from parl_evokit.config import ScheduleConfig, ScheduleKind


def search(kind: type[Any] = ES, *, rate: dict[str, Any] | None = None, std: dict[str, Any] | None = None) -> Any:
    names = {ES: "BASIC_ES", ARS: "ARS", PGPE: "PGPE"}
    solver = {
        "type": names[kind],
        "optimizer": {"type": "SGD", "base_lr": 1.0, "schedule": rate or {}},
        "sampling": {"gaussian_sampling": {"std": 0.5, "seed": 7, "schedule": std or {}}},
    }
    return kind(np.full(20, 3.0), {"keys": "COUNTER", "solver": solver})


def step(es: Any) -> np.ndarray:
    infos = es.ask(8)
    before = es.mean.copy()
    es.tell(infos, [-float((es.candidate(info) ** 2).sum()) for info in infos])
    return np.asarray(es.mean - before)


@pytest.mark.slow
@pytest.mark.parametrize("population", [4, 10, 32])
def test_a_search_without_settings_solves_a_sphere(population: int) -> None:
    es = ES(np.full(50, 3.0))
    for _ in range(1000):
        infos = es.ask(population)
        es.tell(infos, [-float((es.candidate(info) ** 2).sum()) for info in infos])
    assert float((es.mean**2).sum()) < 1.0


def test_factors_go_from_one_to_the_last_and_stay_there() -> None:
    linear = ScheduleConfig(ScheduleKind.LINEAR, 0.2, 4)
    assert [linear.factor(t) for t in (0, 1, 2, 4, 99)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])
    exponential = ScheduleConfig(ScheduleKind.EXPONENTIAL, 0.01, 2)
    assert [exponential.factor(t) for t in (0, 1, 2, 99)] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    assert [ScheduleConfig().factor(t) for t in (0, 10**6)] == [1.0, 1.0]


def test_the_first_step_is_that_of_no_schedule_and_later_ones_are_shorter() -> None:
    plain, scheduled = search(), search(rate={"type": "LINEAR", "final": 0.25, "updates": 3})
    assert (step(plain) == step(scheduled)).all()
    assert np.allclose(step(scheduled), 0.75 * step(plain), rtol=1e-2)  # of the same rewards, or nearly


@pytest.mark.parametrize("kind", [ES, ARS])
def test_the_deviation_of_samples_follows_its_schedule(kind: type[Any]) -> None:
    es = search(kind, std={"type": "EXPONENTIAL", "final": 0.01, "updates": 4})
    for wanted in (0.5, 0.5 * 0.01**0.25, 0.05, 0.5 * 0.01**0.75, 0.005, 0.005):
        infos = es.ask(64)
        spread = np.std([es.candidate(info) - es.mean for info in infos])
        assert spread == pytest.approx(wanted, rel=0.1)
        step(es)


def test_a_saved_search_goes_on_with_its_rates() -> None:
    schedules: dict[str, Any] = {
        "rate": {"type": "EXPONENTIAL", "updates": 6},
        "std": {"type": "LINEAR", "final": 0.5, "updates": 6},
    }
    whole, first, second = (search(**schedules) for _ in range(3))
    for _ in range(3):
        step(first)
    second.load_state(first.state())
    second._sampler = replace(first.sampler, std=second.sampler.std)
    for _ in range(3):
        step(second)
    for _ in range(6):
        step(whole)
    assert (whole.mean == second.mean).all()
    assert whole.sampler.std == second.sampler.std == 0.25


def test_agents_save_and_load_schedules(tmp_path: Path) -> None:
    config = {"solver": {"sampling": {"gaussian_sampling": {"std": 0.5, "schedule": {"type": "LINEAR", "updates": 2}}}}}
    agent = ESAgent(config, mlp([2, 2]))
    clone = agent.clone()
    agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    agent.save(tmp_path / "model")
    other = ESAgent()
    other.load_config(config)
    other.load_inference_model(tmp_path / "model")
    other.load_solver(tmp_path / "model")
    assert other._ready("test")[0].sampler.std == agent._ready("test")[0].sampler.std == pytest.approx(0.275)
    text = Config.load(config).to_prototxt()
    path = tmp_path / "config.prototxt"
    path.write_text(text)
    assert Config.load(path) == Config.load(config)


def test_schedules_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="final"):
        ScheduleConfig(final=0.0)
    with pytest.raises(ConfigError, match="updates"):
        ScheduleConfig(updates=0)
    with pytest.raises(ConfigError, match="schedule of std"):
        search(PGPE, std={"type": "LINEAR"})
    assert search(PGPE, rate={"type": "LINEAR"}).config.solver.optimizer.schedule.type is ScheduleKind.LINEAR
    gaussian = {"schedule": {"type": "LINEAR"}}
    with pytest.raises(ConfigError, match="IMPORTANCE"):
        Config.load({"solver": {"sampling": {"gaussian_sampling": gaussian}, "update": {"stale": "IMPORTANCE"}}})
