"""Guard rails: shortened updates, control traffic, going back to the last model, and the history of all of it."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from parl_evokit import (
    CMAES,
    ES,
    GA,
    ConfigError,
    ESAgent,
    LogWriter,
    NothingToUpdate,
    SamplingInfo,
    SolverError,
    Tokens,
    _solver_dir,
    mlp,
)
from parl_evokit.agent import solver_class
from parl_evokit.cli import main
from parl_evokit.config import GuardConfig, SolverKind
from parl_evokit.guard import Comparison, Control, Guard, Verdict, shortened
from parl_evokit.noise._keys import Arm, identity_in


def settings(kind: str = "BASIC_ES", lr: float = 0.1, **guard: Any) -> dict[str, Any]:
    shares = {"control_share": 0.1, "holdout_share": 0.1} if guard.get("rollback") else {}
    return {
        "keys": "COUNTER",
        "solver": {
            "type": kind,
            "optimizer": {"type": "ADAM", "base_lr": lr},
            "sampling": {"gaussian_sampling": {"std": 0.1}},
            "guard": shares | guard,
        },
    }


NUMBERS = count(2)


def control(es: Any, held_out: bool = False) -> SamplingInfo:
    """Return a new sample without noise of the present model, or of the arm that got the trusted one."""
    model, fingerprint = es.sampler.origin
    identity = identity_in(Arm.TRUSTED if held_out else Arm.PRESENT, next(NUMBERS))
    return SamplingInfo([0, 0], model, fingerprint, identity)


def is_held_out(info: SamplingInfo) -> bool:
    """Return whether the trusted model was served."""
    return info.identity >> 60 == Arm.TRUSTED


def update(es: Any, controls: list[float], holdout: list[float] = ()) -> Any:  # type: ignore[assignment]
    """One update, with rewards of the present model without noise, and of the trusted one."""
    count = max(8, getattr(es, "population", 0))
    infos = es.ask(count)
    rewards = [7.0 * n % count + 100 * es.sampler.model_iter_id for n in range(count)]  # the best are not a pair
    infos += [control(es) for _ in controls] + [control(es, held_out=True) for _ in holdout]
    return es.tell(infos, [*rewards, *controls, *holdout])


def rewards_of(mean: float, n: int, seed: int) -> list[float]:
    return (mean + 0.1 * np.random.default_rng(seed).standard_normal(n)).tolist()


def test_an_update_is_shortened_to_the_allowed_part_of_the_parameters_length() -> None:
    free, held = ES(np.full(50, 2.0), settings(lr=1.0)), ES(np.full(50, 2.0), settings(lr=1.0, max_update_ratio=0.01))
    far, near = update(free, []), update(held, [])
    assert near.update_norm == pytest.approx(0.01 * np.sqrt(50 * 4), rel=1e-5)
    assert far.update_norm > 10 * near.update_norm
    direction = (free.mean - 2.0) / np.linalg.norm(free.mean - 2.0)
    assert (held.mean - 2.0) / np.linalg.norm(held.mean - 2.0) == pytest.approx(direction, abs=1e-5)


def test_short_updates_and_models_of_zeros_are_left_alone() -> None:
    before, after = np.ones(3, np.float32), np.full(3, 1.001, np.float32)
    assert shortened(before, after, 0.5) is after
    assert shortened(before, after, 0.0) is after
    assert shortened(np.zeros(3, np.float32), after, 0.5) is after


def test_the_step_of_a_model_of_zeros_is_bounded_by_its_perturbations() -> None:
    held = ES(np.zeros(50), settings(lr=100.0, max_update_ratio=0.5))
    assert update(held, []).update_norm == pytest.approx(0.5 * 0.1 * np.sqrt(50), rel=1e-5)


KINDS = ["BASIC_ES", "ARS", "PGPE", "SNES", "CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES", "CEM", "GA"]


def rolled_back(kind: str) -> tuple[Any, Any, Any, int]:
    """A search that has just gone back to its first model: with the report, that model, and the number it left."""
    es = solver_class(SolverKind[kind])(np.ones(6), settings(kind, rollback=True, min_control=3))
    good = es.mean.copy()
    update(es, [10.0, 10.1, 9.9])
    report, seed = update(es, rewards_of(10.0, 5, 1), rewards_of(10.0, 5, 2)), 3
    assert report.rolled_back == ""
    assert (es.mean != good).any()
    while not report.rolled_back:
        number = es.sampler.model_iter_id
        report, seed = update(es, rewards_of(9.5, 10, seed), rewards_of(10.0, 10, seed + 1)), seed + 2
        assert seed < 20
    return es, report, good, number


def test_the_means_of_the_arms_are_those_of_their_own_models() -> None:
    es = ES(np.ones(6), settings(rollback=True, min_control=1000))
    update(es, [1.0, 3.0])
    report = update(es, [0.0, 0.5], [10.0, 11.0, 12.0])
    assert (report.control, report.control_mean) == (2, 0.25)
    assert (report.holdout, report.holdout_mean) == (3, 11.0)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_are_worse_than_the_trusted_one_are_left_and_their_samples_count(kind: str) -> None:
    es, report, good, number = rolled_back(kind)
    assert "rewards without noise since model 0 are -0." in report.rolled_back
    assert (report.holdout, report.holdout_mean) == (10, pytest.approx(10.0, abs=0.2))
    assert report.advantage is not None
    assert report.advantage[1] < 0.0
    count = max(8, getattr(es, "population", 0))
    assert (report.used, report.model_iter_id, es.sampler.model_iter_id) == (count, number + 2, number + 2)
    assert es.guard.trusted is not None
    assert (es.guard.trusted[1] == good).all()
    if kind == "GA":  # the trusted model stays the model; the round's best breed beside it
        assert (es.mean == good).all()
        assert len(es.sampler.parents) == 1 + count // 2
        assert not (es.sampler.parents[1:] == good).all(axis=1).any()
    else:
        assert (es.mean != good).any()
    resumed = type(es)(es.mean, es.config)
    resumed.load_state(es.state())
    for one in (es, resumed):
        update(one, [])
    assert resumed.mean.tobytes() == es.mean.tobytes()


@pytest.mark.parametrize("kind", ["CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES", "SNES", "PGPE", "CEM"])
def test_the_step_after_a_rollback_is_that_of_the_rounds_noise_around_the_trusted_model(kind: str) -> None:
    """Rewards grow with one parameter, so the step from the trusted model goes its way, wherever the one left was."""
    config = settings(kind, rollback=True, min_control=3)
    config["solver"]["optimizer"] = {"type": "SGD", "base_lr": 1.0}
    es = solver_class(SolverKind[kind])(np.ones(4), config)
    update(es, [10.0, 10.1, 9.9])
    for seed in range(3, 23, 2):
        infos = es.ask(200)
        rewards = es.candidates(infos)[:, 2].tolist()
        infos += [control(es) for _ in range(10)] + [control(es, held_out=True) for _ in range(10)]
        report = es.tell(infos, [*rewards, *rewards_of(9.5, 10, seed), *rewards_of(10.0, 10, seed + 1)])
        if report.rolled_back:
            break
    assert report.rolled_back
    step = es.mean - 1.0
    assert step[2] > 0
    assert step[2] > 1.5 * np.abs(np.delete(step, 2)).max()


def test_samples_that_a_rollback_makes_too_old_are_reported_as_such() -> None:
    config = settings(rollback=True, min_control=3)
    config["solver"]["update"] = {"max_age": 1}
    es = ES(np.ones(6), config)
    update(es, [])
    late = es.ask(3)
    update(es, [])
    infos = [*es.ask(8), *late, *(control(es) for _ in range(30)), *(control(es, held_out=True) for _ in range(30))]
    report = es.tell(infos, [*range(11), *rewards_of(1.0, 30, 1), *rewards_of(10.0, 30, 2)])
    assert report.rolled_back
    assert (report.used, report.set_aside.too_old, report.stale) == (8, 3, {1: 8})


def test_samples_that_are_too_few_for_a_step_after_a_rollback_are_reported_as_such() -> None:
    config = settings(rollback=True, min_control=3)
    config["solver"]["update"] = {"min_samples": 8}
    es = ES(np.ones(6), config)
    update(es, [])
    infos = [*es.ask(5), *(control(es) for _ in range(30)), *(control(es, held_out=True) for _ in range(30))]
    report = es.tell(infos, [*range(5), *rewards_of(1.0, 30, 1), *rewards_of(10.0, 30, 2)])
    assert report.rolled_back
    assert (report.used, report.set_aside.too_few, report.set_aside.total, report.mean_reward) == (0, 5, 5, 2.0)
    assert (report.pairs, report.effective, report.stale, report.stale_rule) == (0, 0.0, {}, "")
    assert (es.mean == 1.0).all()


def test_clones_leave_the_old_trusted_model_also_where_the_step_is_not_taken() -> None:
    config = settings(rollback=True, min_control=3)
    config["solver"]["update"] = {"shaping": "CENTERED"}
    es = ES(np.ones(6), config)
    update(es, [])
    infos = [*es.ask(4), *(control(es) for _ in range(30)), *(control(es, held_out=True) for _ in range(30))]
    rewards = [3e38, -3e38, 3e38, 1.0, *rewards_of(10.0, 30, 1), *rewards_of(1.0, 30, 2)]
    assert es.sampler.trusted is not None
    report = es.tell(infos, rewards)
    assert report.rejected
    assert (report.used, report.pairs, report.effective, report.stale) == (0, 0, 0.0, {})
    assert es.guard.comparison.number == 2
    assert es.guard.trusted is es.sampler.trusted is None


def test_the_hour_does_not_count_only_the_arms_of_the_same_hours_do() -> None:
    es = ES(np.ones(6), settings(rollback=True, min_control=3))
    update(es, [10.0, 10.1, 9.9])
    for hour in range(60):
        level = 10.0 + 3.0 * np.sin(hour / 4)
        update(es, rewards_of(level, 5, hour), rewards_of(level, 5, 1000 + hour))
        assert update(es, [level - 8.0] * 5).rolled_back == "", "there is no other arm to compare with"
        assert es.guard.comparison.present.count == 5
        es.guard.comparison = type(es.guard.comparison)(**{**vars(es.guard.comparison), "present": Control()})


def test_a_model_that_is_no_worse_becomes_the_trusted_one() -> None:
    es = ES(np.ones(6), settings(rollback=True, min_control=3, margin=0.5))
    update(es, [10.0])
    seed = 0
    while (es.guard.trusted or (-1,))[0] == 0:
        report, seed = update(es, rewards_of(10.2, 20, seed), rewards_of(10.0, 20, seed + 1)), seed + 2
        assert seed < 40
    assert es.guard.trusted is not None
    assert es.guard.trusted[0] > 0
    assert es.guard.comparison.number == 2
    assert report.holdout == 20
    assert report.holdout_mean == pytest.approx(10.0, abs=0.2)
    assert report.rolled_back == ""


def test_false_alarms_are_as_rare_as_promised_and_worse_models_are_found() -> None:
    """Twenty months of 720 hours, with daily cycles of 0.3 standard deviations."""

    def month(effect: float, seed: int) -> int | None:
        random = np.random.default_rng(seed)
        guard = Guard(GuardConfig(control_share=0.1, holdout_share=0.1, rollback=True, min_control=30))
        for hour in range(720):
            guard = guard.updated(hour, np.ones(2, np.float32), {})
            level = 0.3 * np.sin(2 * np.pi * hour / 24)
            arms = random.standard_normal((2, 40)) + level
            guard = guard.noting((arms[0] + effect).tolist(), arms[1].tolist())
            if guard.verdict() is Verdict.WORSE:
                return hour
            if guard.verdict() is Verdict.TRUSTED:
                guard = guard.trust_present()
        return None

    assert [month(0.0, seed) for seed in range(20)] == [None] * 20
    found = [month(-0.3, seed) for seed in range(20)]
    assert all(hour is not None and hour < 48 for hour in found)


Arms = tuple[NDArray[Any], NDArray[Any]]


def verdict_of(seed: int, draw: Callable[[np.random.Generator], Arms], rounds: int) -> tuple[Verdict, int]:
    """Return the verdict on the rewards of the present model and the holdout, and after how many rounds it came."""
    random, guard = np.random.default_rng(seed), Guard(GuardConfig(control_share=0.1, holdout_share=0.1, rollback=True))
    guard = guard.updated(0, np.ones(2, np.float32), {})
    for number in range(1, rounds + 1):
        present, holdout = draw(random)
        guard = guard.noting(present.tolist(), holdout.tolist())
        if guard.verdict() is not Verdict.OPEN:
            return guard.verdict(), number
    return Verdict.OPEN, rounds


def test_rewards_with_heavy_tails_raise_no_more_false_alarms_than_others() -> None:
    def draw(random: np.random.Generator) -> Arms:
        present, holdout = random.lognormal(0.0, 2.0, (2, 30))  # such as times on a page: a few are very long
        return present, holdout

    assert [verdict_of(seed, draw, 120)[0] for seed in range(60)].count(Verdict.WORSE) <= 2


def test_rewards_that_spread_more_and_more_raise_no_more_false_alarms_than_others() -> None:
    """A hundred comparisons of equal models, each after long ones in which rewards hardly differed."""
    alarms = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        comparison = Comparison(2, spread=3e4, freedom=30_000)
        for hour in range(100):
            present, holdout = 30.0 * 1.02**hour * random.standard_normal((2, 10))
            comparison = comparison.with_rewards(present.tolist(), holdout.tolist(), 2)
            low, high = comparison.interval(0.01)
            if not low <= 0.0 <= high:
                alarms += 1
                break
    assert alarms <= 3


@pytest.mark.parametrize("small", ["present", "holdout"])
@pytest.mark.parametrize("rewards", ["rare clicks", pytest.param("times on a page", marks=pytest.mark.slow)])
def test_unequal_arms_raise_no_more_false_alarms_than_equal_ones(rewards: str, small: str) -> None:
    """Two hundred comparisons of equal models."""

    def draw(random: np.random.Generator) -> Arms:
        both = random.random(600) < 0.002 if rewards == "rare clicks" else random.lognormal(0.0, 2.0, 600)
        return (both[:30], both[30:]) if small == "present" else (both[30:], both[:30])

    assert [verdict_of(seed, draw, 150)[0] for seed in range(200)].count(Verdict.WORSE) <= 2


@pytest.mark.parametrize(("present", "holdout"), [(30, 570), (570, 30)])
def test_worse_models_are_found_as_soon_in_unequal_arms(present: int, holdout: int) -> None:
    def draw(random: np.random.Generator) -> Arms:
        return random.standard_normal(present) - 0.3, random.standard_normal(holdout)

    found = [verdict_of(seed, draw, 99) for seed in range(20)]
    assert {verdict for verdict, _ in found} == {Verdict.WORSE}
    assert np.mean([hours for _, hours in found]) < 8


@pytest.mark.parametrize("common", [1e9, 1e12])
def test_a_part_that_all_rewards_have_in_common_does_not_count(common: float) -> None:
    found = []
    for part in (0.0, common):
        random, comparison = np.random.default_rng(1), Comparison()
        for present in (4, 5, 20):  # the first are fewer than it takes, and are added to the next
            arms = np.round(1024 * random.standard_normal((2, present))) / 1024 + part
            comparison = comparison.with_rewards(arms[0].tolist(), arms[1].tolist(), 8)
        found.append([comparison.variance, *comparison.interval(0.01)])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_the_sums_of_an_arm_are_those_of_all_its_rewards() -> None:
    rewards = np.random.default_rng(1).standard_normal(30)
    parts = [Control.of(part.tolist()) for part in np.split(rewards, [3, 4, 20])]
    together = parts[0] + parts[1] + parts[2] + parts[3] + Control()
    assert together.count == 30
    assert (together.mean, together.spread) == pytest.approx((rewards.mean(), 30 * rewards.var()))


def test_an_update_that_fails_counts_no_control_rewards() -> None:
    es = ES(np.ones(6), settings(rollback=True, min_control=2))
    update(es, [10.0, 10.1])
    for _ in range(3):
        with pytest.raises(NothingToUpdate):
            es.tell([control(es), control(es, held_out=True)], [5.0, 10.0])
    assert es.guard.comparison.present.count == 0


def test_a_share_of_the_traffic_gets_the_trusted_model() -> None:
    agent = ESAgent(settings(rollback=True, control_share=0.2, holdout_share=0.3), mlp([4, 2]))
    clone = agent.clone()
    trusted = {name: array.copy() for name, array in agent.parameters().items()}
    infos = [clone.add_noise() for _ in range(400)]
    assert {info.model_iter_id for info in infos} == {0}
    agent.update(infos, np.arange(400.0))
    infos, holdout = [], []
    for _ in range(2000):
        infos.append(clone.add_noise())
        if all((array == trusted[name]).all() for name, array in clone.parameters().items()):
            holdout.append(infos[-1])
    assert len(holdout) / 2000 == pytest.approx(0.3, abs=0.04)
    assert sum(info.noise_key == 0 for info in infos) / 2000 == pytest.approx(0.5, abs=0.04)
    assert all(info.noise_key == 0 and info.identity for info in holdout)
    assert {info.model_iter_id for info in infos} == {1}
    report = agent.update([*infos, *holdout], np.concatenate([np.arange(2000.0), np.zeros(len(holdout))]))
    assert report.holdout == len(holdout)


def test_both_arms_have_the_same_age_limit() -> None:
    """Equal models, whose late rewards are better."""
    config = settings(rollback=True, min_control=2)
    config["solver"]["update"] = {"max_age": 3}
    es = ES(np.ones(6), config)
    update(es, [])
    late = [control(es, held_out) for held_out in (False, True) * 10]
    for _ in range(4):
        update(es, rewards_of(1.0, 10, 1), rewards_of(1.0, 10, 1))
    report = es.tell([*es.ask(8), *late], [*range(8), *[100.0] * 20])
    assert report.set_aside.too_old == 20
    assert (report.control, report.holdout) == (0, 0)
    assert es.guard.comparison.total == 0.0


def test_probes_are_not_compared() -> None:
    agent = ESAgent(settings(rollback=True, min_control=2), mlp([4, 2]))
    clone, tokens = agent.clone(), Tokens([bytes(32)])
    agent.update([clone.add_noise() for _ in range(40)], np.arange(40.0))
    probes = [clone.add_noise(evaluate=True) for _ in range(200)]
    for probe in probes[100:]:
        tokens.issue(probe)
    infos = [clone.add_noise() for _ in range(8)]
    report = agent.update([*infos, *probes], [*range(8), *[-5.0] * 200])
    assert report.control >= 200
    comparison = agent._ready("test")[0].guard.comparison
    assert comparison.present.count + comparison.holdout.count + comparison.seen_present + comparison.seen_holdout <= 8


@pytest.mark.parametrize(("control_share", "holdout_share"), [(0.04, 0.95), (0.6, 0.1), (0.1, 0.6), (0.3, 0.699)])
def test_late_rewards_stay_in_their_arm_where_the_shares_have_changed(
    tmp_path: Path, control_share: float, holdout_share: float
) -> None:
    before = ESAgent(settings(rollback=True, control_share=0.3, holdout_share=0.3), mlp([4, 2]))
    clone, trusted = before.clone(), before.parameters()["w0"]
    before.update([clone.add_noise() for _ in range(40)], np.arange(40.0))
    before.save(tmp_path)
    infos, rewards, served = [], [], 0
    for _ in range(400):
        infos.append(clone.add_noise())
        held_out = bool((clone.parameters()["w0"] == trusted).all())
        rewards.append(7.0 if infos[-1].noise_key else 2.0 if held_out else 1.0)
        served += held_out
    after = ESAgent()
    after.load_config(settings(rollback=True, control_share=control_share, holdout_share=holdout_share))
    after.load_inference_model(tmp_path)
    after.load_solver(tmp_path)
    report = after.update(infos, rewards)
    assert (report.control_mean, report.holdout_mean) == (1.0, 2.0)
    assert report.holdout == served
    comparison = after._ready("test")[0].guard.comparison
    assert comparison.total < 0.0
    assert (comparison.seen_present, comparison.seen_holdout) == (report.control, report.holdout)


def test_the_arms_are_told_apart_also_where_nothing_is_compared_any_more() -> None:
    es = ES(np.ones(6), settings(control_share=0.1, holdout_share=0.1))
    late = [control(es, held_out=True) for _ in range(3)]
    report = es.tell([*es.ask(8), control(es), *late], [*range(8), 1.0, 5.0, 6.0, 7.0])
    assert (report.control, report.control_mean) == (1, 1.0)
    assert (report.holdout, report.holdout_mean, report.advantage) == (3, 6.0, None)


def test_a_share_of_the_traffic_is_control_the_same_for_a_key_everywhere() -> None:
    agent = ESAgent(settings(control_share=0.25), mlp([4, 2]))
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(2000)]
    share = sum(info.noise_key == 0 for info in infos) / len(infos)
    assert share == pytest.approx(0.25, abs=0.03)
    again = ESAgent(settings(control_share=0.25), mlp([4, 2])).clone()
    assert [again.add_noise() for _ in range(50)] == infos[:50]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="control_share must be at least 0 and below 1, not 1"):
        ES(np.ones(3), settings(control_share=1.0))
    with pytest.raises(ConfigError, match="GA does not support max_update_ratio"):
        GA(np.ones(3), settings("GA", max_update_ratio=0.1))


@pytest.mark.parametrize(("control", "holdout"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)])
def test_a_rollback_without_both_arms_of_its_comparison_is_refused(control: float, holdout: float) -> None:
    guard = {"rollback": True, "control_share": control, "holdout_share": holdout}
    with pytest.raises(ConfigError, match=f"must be above 0 with rollback.*not {control:g} and {holdout:g}"):
        ESAgent({"solver": {"guard": guard}}, mlp([4, 2]))


def test_a_resumed_solver_remembers_the_trusted_model_and_the_comparison() -> None:
    straight = CMAES(np.ones(6), settings("CMA_ES", rollback=True, min_control=3))
    update(straight, [10.0, 10.1, 9.9])
    update(straight, rewards_of(10.0, 10, 1), rewards_of(10.0, 10, 2))
    resumed = CMAES(straight.mean, straight.config)
    resumed.load_state(straight.state())
    assert resumed.sampler.trusted is not None
    found = [update(es, rewards_of(5.0, 10, 3), rewards_of(10.0, 10, 4)).rolled_back for es in (straight, resumed)]
    assert found[0] == found[1] != ""
    assert (straight.mean == resumed.mean).all()


def test_a_comparison_of_an_earlier_version_goes_on() -> None:
    es = ES(np.ones(6), settings(rollback=True, min_control=3))
    update(es, [10.0, 10.1, 9.9])
    update(es, rewards_of(10.0, 10, 1), rewards_of(10.0, 10, 2))
    state, again = es.state(), ES(np.ones(6), es.config)
    state["guard.comparison"] = state["guard.comparison"][:-1]  # which ended with the rewards of the holdout
    state["guard.waiting"] = state.pop("guard.arms")  # which had sums of squares; both arms have no rewards here
    again.load_state(state)
    assert again.guard.comparison == replace(es.guard.comparison, varied=0.0)


def test_the_history_tells_of_every_update_and_shows_what_was_changed_in_it(tmp_path: Path) -> None:
    agent = ESAgent(settings(), mlp([4, 2]))
    clone = agent.clone()
    for n in range(3):
        agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0 + n])
        agent.save(tmp_path / "d")
    lines = _solver_dir.read_history(tmp_path / "d")
    assert _solver_dir.check_history(lines) == 3
    assert [json.loads(line)["best_reward"] for line in lines] == [4.0, 5.0, 6.0]
    assert json.loads(lines[-1])["model_iter_id"] == 3
    forged = [lines[0], lines[1].replace('"best_reward":5.0', '"best_reward":9.0'), lines[2]]
    with pytest.raises(SolverError, match="line 3 of the history does not follow line 2"):
        _solver_dir.check_history(forged)
    restored = ESAgent()
    restored.load_config(settings())
    restored.load_inference_model(tmp_path / "d", model=mlp([4, 2]))
    restored.load_solver(tmp_path / "d")
    restored.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    restored.save(tmp_path / "d")
    assert _solver_dir.check_history(_solver_dir.read_history(tmp_path / "d")) == 4


def _changed(whole: bytes) -> bytes:
    return whole.replace(b'"best_reward":5.0', b'"best_reward":9.0')


def _newest_changed(whole: bytes) -> bytes:
    return whole.replace(b'"best_reward":6.0', b'"best_reward":9.0')


def _newest_gone(whole: bytes) -> bytes:
    return b"".join(whole.splitlines(keepends=True)[:-1])


def _shorter(whole: bytes) -> bytes:
    return b"\n".join(line for i, line in enumerate(whole.split(b"\n")) if i != 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_changed, "line 3 of the history does not follow line 2"),
        (_shorter, "line 2 of the history does not follow line 1"),
        (lambda whole: whole[:-200], "line 3 of the history"),
        (lambda whole: whole[:-10] + b"?\n", "line 3 of the history"),
        (lambda whole: whole[:50] + b"\xff" + whole[51:], "is not text"),
        (lambda whole: whole + b"[]\n", "line 4 of the history"),
        (_newest_changed, "has 3 lines, .* but was written with 3 lines"),
        (_newest_gone, "has 2 lines, .* but was written with 3 lines"),
        (lambda _: b"", "has 0 lines, .* but was written with 3 lines"),
    ],
)
def test_a_damaged_history_is_refused_and_can_be_left_behind(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    agent = ESAgent(settings(), mlp([4, 2]))
    clone = agent.clone()
    for n in range(3):
        agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0 + n])
    agent.save(tmp_path / "d")
    file = tmp_path / "d" / "history.jsonl"
    file.write_bytes(damage(file.read_bytes()))

    def loaded() -> ESAgent:
        restored = ESAgent()
        restored.load_config(settings())
        restored.load_inference_model(tmp_path / "d", model=mlp([4, 2]))
        restored.load_solver(tmp_path / "d")
        return restored

    with pytest.raises(SolverError, match=rf"history\.jsonl.*{message}.*move it away"):
        loaded()
    file.unlink()
    restored = loaded()
    assert restored.model_iter_id == 3
    restored.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    restored.save(tmp_path / "d")
    assert len(_solver_dir.read_history(tmp_path / "d")) == 1


def test_the_command_says_that_it_reverted_and_exits_with_five(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps(settings(rollback=True, min_control=3)))
    mlp([4, 20, 2], activation="linear").save(_made(tmp_path / "m0"))
    run = CliRunner()
    common = ["--config_path", str(config)]
    assert run.invoke(main, ["init-solver", "--model_dir", str(tmp_path / "m0"), *common]).exit_code == 0
    codes = []
    for epoch, worth in enumerate((10.0, 10.0, 1.0)):
        agent = ESAgent()
        agent.load_config(config)
        agent.load_inference_model(tmp_path / f"m{epoch}", model=mlp([4, 20, 2], activation="linear"))
        agent.load_solver(tmp_path / f"m{epoch}")
        clone, strategy = agent.clone(), agent._ready("test")[0]
        with LogWriter(tmp_path / "log") as log:
            for n in range(6):
                log.reward(clone.add_noise(), float(n))
            for n in range(3):
                log.reward(control(strategy), worth + 0.1 * n)
                log.reward(control(strategy, held_out=True), 10.0 + 0.1 * n)
        models = ["--model_dir", str(tmp_path / f"m{epoch}"), "--updated_model_dir", str(tmp_path / f"m{epoch + 1}")]
        result = run.invoke(main, ["offline-update", "--log_path", str(tmp_path / "log"), *models, *common])
        codes.append(result.exit_code)
    assert codes == [0, 0, 5]
    assert "reverted to the trusted model" in result.stderr


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_model_that_is_nearly_zero_can_move_as_one_of_zeros() -> None:
    moved = []
    for scale in (0.0, 1e-12, 1e-3):
        es = ES(np.full(50, scale), settings(max_update_ratio=0.5))
        es.tell(es.ask(8), np.arange(8.0))
        moved.append(float(np.linalg.norm(es.mean)))
    assert moved[1] == pytest.approx(moved[0], rel=1e-3)
    assert moved[2] > 0.9 * moved[0]


@pytest.mark.parametrize("std", [0.3, np.full(1_000_000, 0.3, np.float32)], ids=["one", "of each parameter"])
def test_a_limit_of_updates_needs_no_copy_of_the_model_in_python_numbers(std: float | np.ndarray) -> None:
    before, after = np.zeros(1_000_000, np.float32), np.ones(1_000_000, np.float32)
    tracemalloc.start()
    same = shortened(before, after, 4.0, std)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert same is after
    assert peak < 8e6


def test_samples_of_both_arms_are_predicted_as_a_clone_serves_them() -> None:
    agent = ESAgent(settings(rollback=True, control_share=0.2, holdout_share=0.3), mlp([4, 2]))
    clone, x = agent.clone(), np.arange(4, dtype=np.float32)
    agent.update(clone.draw(40), np.arange(40.0))
    infos = clone.draw(40)
    strategy = agent._ready("test")[0]
    assert {is_held_out(info) for info in infos if info.identity} == {False, True}
    outputs = agent.predict_many(infos, x)
    for info, output in zip(infos, outputs, strict=True):
        clone.apply_noise(info)
        assert output == pytest.approx(clone.predict(x), abs=1e-6)
        served = np.concatenate([part.ravel() for part in clone.parameters().values()])
        assert (strategy.candidate(info) == served).all()


def test_a_solver_that_is_loaded_without_rollback_serves_only_the_present_model() -> None:
    before = ES(np.ones(6), settings(rollback=True, min_control=3))
    update(before, [10.0, 10.1, 9.9])
    assert before.sampler.trusted is not None
    loaded = ES(before.mean, settings(rollback=False, control_share=0.1, holdout_share=0.1))
    loaded.load_state(before.state())
    assert loaded.sampler.trusted is None
    assert loaded.sampler.model_iter_id == before.sampler.model_iter_id
