"""Odd input to searches, logs and agents: refused before anything changes, or taken for what it means."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from parl_evokit import (
    ARS,
    CEM,
    CMAES,
    CRFMNES,
    ES,
    GA,
    LMMAES,
    PGPE,
    SNES,
    AsyncESAgent,
    Config,
    ConfigError,
    ESAgent,
    EvolutionError,
    InvalidReward,
    LayoutMismatch,
    LogError,
    LogWriter,
    MapElites,
    NothingToUpdate,
    NumpyModel,
    RecordError,
    SamplingInfo,
    SepCMAES,
    SolverError,
    Tokens,
    mlp,
    off_policy,
    read_log,
    update_lock,
)
from parl_evokit.log import write_raw
from parl_evokit.log._segments import compact, prune
from parl_evokit.strategy import Strategy
from parl_evokit.tokens import create_secret, rotate_secret

KINDS: dict[str, type[Strategy]] = {
    "BASIC_ES": ES,
    "ARS": ARS,
    "PGPE": PGPE,
    "SNES": SNES,
    "GA": GA,
    "CMA_ES": CMAES,
    "SEP_CMA_ES": SepCMAES,
    "CEM": CEM,
    "LM_MA_ES": LMMAES,
    "CR_FM_NES": CRFMNES,
}
every = pytest.mark.parametrize("name", KINDS)
cma = pytest.mark.parametrize("name", ["CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES"])


def settings(name: str, **cma_sampling: Any) -> dict[str, Any]:
    sampling = {"gaussian_sampling": {"std": 0.5, "seed": 3}, "cma_sampling": {"population": 6, **cma_sampling}}
    return {"keys": "COUNTER", "solver": {"type": name, "sampling": sampling}}


def search(name: str, n: int = 4) -> Strategy:
    return KINDS[name](np.linspace(-1, 2, n), settings(name))


def generation(es: Strategy) -> None:
    infos = es.ask(6)
    es.tell(infos, -np.square(es.candidates(infos).astype(np.float64)).sum(axis=1))


def arrays(es: Strategy) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in es.state().items()} | {"mean": es.mean.tobytes()}


@every
def test_the_class_decides_the_algorithm_and_settings_of_another_one_are_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"keys": "COUNTER"}')
    for source in ({"keys": "COUNTER"}, file):
        assert KINDS[name](np.ones(4), source).config.solver.type.name == name  # type: ignore[arg-type]
    other = "SNES" if name == "CEM" else "CEM"
    for settings_ in ({"solver": {"type": other}}, Config.load({"solver": {"type": other}})):
        with pytest.raises(ConfigError, match=f"runs {name}, but the settings have solver.type {other}"):
            KINDS[name](np.ones(4), settings_)


@every
@pytest.mark.parametrize("limit", [{"lower": [-9.0]}, {"upper": [9.0]}, {"integers": [0]}])
def test_limits_that_an_algorithm_would_ignore_are_refused(name: str, limit: dict[str, Any]) -> None:
    known = {"CMA_ES", "SEP_CMA_ES"} | ({"LM_MA_ES", "CR_FM_NES"} if "integers" not in limit else set())
    source = {"solver": {"sampling": {"cma_sampling": limit}}}
    if name in known:
        assert KINDS[name](np.ones(4), source).config.solver.type.name == name
        return
    with pytest.raises(ConfigError, match=f"{next(iter(limit))} is for .*CMA_ES.*; {name} would ignore it"):
        KINDS[name](np.ones(4), source)


@every
def test_a_start_beyond_float32_is_refused_without_a_warning(name: str) -> None:
    for start in ([1e300, 0.0], {"x": np.array([1e300, 0.0])}):
        with pytest.raises(LayoutMismatch, match="the initial parameters must be finite float32 numbers"):
            KINDS[name](start, settings(name))


@pytest.mark.parametrize("named", [False, True])
def test_a_start_that_does_not_hold_real_numbers_is_refused(named: bool) -> None:
    def begin(start: Any) -> ES:
        return ES({"x": start} if named else start)

    for start, kind in (([1j], "complex128"), (["1"], "<U1"), ([None], "object"), ([True], "bool")):
        with pytest.raises(LayoutMismatch, match=f"must hold real numbers, not {kind}"):
            begin(np.array(start))
    for other in (None, True, "1", 1j):
        with pytest.raises(LayoutMismatch, match="must hold real numbers, not object"):
            begin(np.array([10**20, other], object))
    with pytest.raises(LayoutMismatch, match="the initial parameters must be finite float32 numbers"):
        begin(np.ma.masked_array([1.0, 2.0], [False, True]))
    if not named:  # numpy knows no shape of it
        with pytest.raises(LayoutMismatch, match=r"mean0 must be an array of real numbers: .*call detach\(\) first"):
            ES(Graph())  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [False, True])
def test_a_start_may_hold_fractions_decimals_and_any_integers_within_float32(named: bool) -> None:
    def begin(start: Any) -> ES:
        return ES({"x": np.asanyarray(start)} if named else start)

    numbers: list[Any] = [10**20, -(10**20), 1.5, np.float32(0.1), Fraction(1, 3), Decimal("0.1")]
    assert begin(numbers).mean.tolist() == [float(np.float32(float(number))) for number in numbers]
    assert begin([Decimal(3)]).mean.tolist() == [3.0]
    for beyond in (10**40, -(10**400), Fraction(10**400), Decimal("1e400"), Decimal("nan"), Decimal("snan")):
        with pytest.raises(LayoutMismatch, match="the initial parameters must be finite float32 numbers"):
            begin([1.0, beyond])
    with pytest.raises(LayoutMismatch, match="the initial parameters must be finite float32 numbers"):
        begin(np.ma.masked_array([1, 10**20], [False, True]))


def test_weights_of_a_model_that_are_no_numbers_are_refused_as_the_start() -> None:
    model = NumpyModel({"w": np.full((2, 2), np.nan, np.float32)}, lambda weights, x: x @ weights["w"])
    with pytest.raises(LayoutMismatch, match="the initial parameters must be finite float32 numbers"):
        ESAgent({}, model)


@pytest.mark.parametrize("keys", ["COUNTER", "SECRETS"])
def test_a_negative_number_of_samples_is_refused(keys: str) -> None:
    es, clone = ES([1.0], {"keys": keys}), ESAgent({"keys": keys}, mlp([4, 2])).clone()
    for draw in (es.ask, clone.draw):
        with pytest.raises(ValueError, match="must be 0 or more, not -1"):
            draw(-1)
        assert draw(0) == []


def test_a_perceptron_without_units_in_a_layer_is_refused() -> None:
    for sizes in ([4, 0, 2], [4, -1, 2]):
        with pytest.raises(LayoutMismatch, match="each layer must have 1 unit or more"):
            mlp(sizes)


class Graph:
    """Numbers that are no array, as a tensor that requires a gradient."""

    def __len__(self) -> int:
        return 6

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("call detach() first")


@every
@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (np.ones((6, 1)), r"an array \(6,\), not one of shape \(6, 1\)"),
        ([np.ones(1)] * 6, r"not one of shape \(6, 1\)"),
        (["good"] * 6, "a reward must be a number: .*good"),
        (["1.5"] * 6, "a reward must be a number: .*1.5"),
        (np.array(["2026-01-01"] * 6, "datetime64[D]"), "a reward must be a number: .*datetime64"),
        ([1j] * 6, "a reward must be a number"),
        (np.ones(6, np.complex128), "a reward must be a number: .*complex128"),
        (np.array([1.0, "2", 3.0, 4.0, 5.0, 6.0], object), "a reward must be a number: not '2'"),
        ([Decimal(1), "2", 3, 4, 5, 6], "a reward must be a number: not '2'"),
        (Graph(), "a reward must be a number: .*call detach"),
        ([1.0, 2.0], "6 samples came with 2 rewards"),
    ],
    ids=[
        *("column", "arrays", "words", "numbers as text", "dates", "complex", "complex array", "a text in objects"),
        *("a text in a list", "a tensor with a gradient", "too few"),
    ],
)
def test_rewards_that_are_not_one_number_a_sample_are_refused(name: str, rewards: Any, message: str) -> None:
    es = search(name)
    generation(es)
    infos = es.ask(6)
    before = arrays(es)
    with pytest.raises(InvalidReward, match=message):
        es.tell(infos, rewards)
    assert arrays(es) == before
    es.tell(infos, range(6))


@every
def test_numbers_of_every_kind_are_the_same_rewards(name: str) -> None:
    digests = set()
    rewards: Any
    for rewards in ([3, 1, 2, 0, 5, 4], [np.float32(r) for r in (3, 1, 2, 0, 5, 4)], np.array([3, 1, 2, 0, 5, 4])):
        es = search(name)
        digests.add(es.tell((info for info in es.ask(6)), rewards).parameters_sha256)
    assert len(digests) == 1


@every
def test_starts_of_every_kind_of_number_are_the_same(name: str) -> None:
    found = set()
    for kind in (np.float64, np.float32, np.float16, np.int64):
        es = KINDS[name](np.arange(4).astype(kind), settings(name))
        generation(es)
        found.add(es.mean.tobytes())
    assert len(found) == 1


@every
def test_memory_of_another_shape_is_refused(name: str) -> None:
    es = search(name)
    infos = es.ask(2)
    with pytest.raises(LayoutMismatch, match=r"out has shape \(5,\); the result has \(4,\)"):
        es.candidate(infos[0], np.empty(5, np.float32))
    for shape in ((2, 5), (3, 4), (8,)):
        with pytest.raises(LayoutMismatch, match=r"the result has \(2, 4\)"):
            es.candidates(infos, np.empty(shape, np.float32))
    assert es.candidates([]).shape == (0, 4)


@every
def test_a_search_for_nothing_is_refused(name: str) -> None:
    with pytest.raises(LayoutMismatch, match="there are no initial parameters"):
        KINDS[name]([], settings(name))


@every
@pytest.mark.parametrize("updates", [0, 1, 5])
def test_a_resumed_search_goes_on_by_itself_as_it_would_have(name: str, updates: int) -> None:
    straight = search(name)
    for _ in range(updates):
        generation(straight)
    straight.ask(3)  # samples that are under way
    resumed = KINDS[name](straight.mean, settings(name))
    resumed.load_state(straight.state())
    for _ in range(3):
        generation(straight)
        generation(resumed)
    assert arrays(resumed) == arrays(straight)


@every
def test_a_resumed_search_knows_its_best_candidate(name: str) -> None:
    straight = search(name)
    for _ in range(4):
        generation(straight)
    best, state = straight.best, straight.state()
    assert best is not None
    resumed = KINDS[name](straight.mean, settings(name))
    resumed.load_state({key: array.copy() for key, array in state.items()})
    assert resumed.best is not None
    assert resumed.best.reward == best.reward
    assert resumed.best.parameters.tobytes() == best.parameters.tobytes()
    assert resumed.best.info.SerializeToString() == best.info.SerializeToString()
    infos = resumed.ask(20)
    resumed.tell(infos, [best.reward - 1.0 - number for number in range(20)])
    assert resumed.best.reward == best.reward
    with pytest.raises(LayoutMismatch, match="best candidate"):
        resumed.load_state(state | {"best.parameters": np.zeros(straight.layout.size + 1, np.float32)})
    resumed.load_state({key: array for key, array in state.items() if not key.startswith("best.")})  # as older ones are
    assert resumed.best is None


@cma
def test_equal_rewards_teach_cma_nothing_and_stop_it_in_the_end(name: str) -> None:
    es = search(name)
    before = es.mean.tobytes()
    for _ in range(100):
        es.tell(es.ask(6), [2.0] * 6)
    assert es.mean.tobytes() == before
    assert es.should_stop()


@cma
def test_a_sample_that_came_twice_does_not_make_up_a_population(name: str) -> None:
    es = search(name)
    infos = es.ask(3)
    with pytest.raises(NothingToUpdate, match="3 samples could be used, 6 are needed"):
        es.tell(infos + infos, range(6))


@cma
def test_a_search_with_no_restart_left_ends(name: str) -> None:
    kind: Any = KINDS[name]
    es = kind([1.0], settings(name, restarts="IPOP", max_restarts=0))
    for _ in range(1000):
        generation(es)
        if es.should_stop():
            break
    assert "converged" in es.should_stop()
    assert es.restarts == 0


@cma
def test_infinite_sides_are_no_sides(name: str) -> None:
    free, open_box = (KINDS[name](np.ones(3), settings(name, **box)) for box in ({}, {"lower": [-np.inf], "upper": []}))
    half = KINDS[name](np.ones(3), settings(name, lower=[0.5, -np.inf, -np.inf], upper=[np.inf, 1.5, np.inf]))
    for _ in range(10):
        generation(free)
        generation(open_box)
        generation(half)
        samples = half.candidates(half.ask(6))
        assert (samples[:, 0] >= 0.5).all()
        assert (samples[:, 1] <= 1.5).all()
    assert (free.mean == open_box.mean).all()


@cma
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_known_solutions_are_enough_for_a_warm_start(name: str, count: int) -> None:
    kind: Any = KINDS[name]
    known = np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)
    es = kind.warm_start(known, np.arange(count), settings(name), best=1.0, spread=0.3)
    assert es.mean == pytest.approx(known.mean(axis=0))
    for _ in range(5):
        generation(es)
    assert np.isfinite(es.mean).all()


@pytest.mark.slow
def test_a_separable_warm_start_makes_no_matrix_of_all_parameters() -> None:
    known = np.random.default_rng(0).normal(size=(3, 200_000)).astype(np.float32)  # 320 GB, that matrix would take
    es = SepCMAES.warm_start(known, [1.0, 2.0, 3.0], settings("SEP_CMA_ES"), best=1.0)
    deviation = np.sqrt(es.state()["variances"]) * es.sigma
    assert deviation == pytest.approx(np.sqrt(known.astype(np.float64).var(axis=0) + 0.01))


def test_known_solutions_that_are_no_numbers_are_named() -> None:
    with pytest.raises(LayoutMismatch, match="solution 1 is not"):
        CMAES.warm_start([[1.0, 2.0], [np.nan, 1.0]], [1.0, 2.0])
    with pytest.raises(InvalidReward, match="number 1 has inf"):
        CMAES.warm_start([[1.0, 2.0], [2.0, 1.0]], [1.0, np.inf])
    for spread in (0.0, np.inf, np.nan, 1e200):
        with pytest.raises(ValueError, match="spread must be a standard deviation"):
            CMAES.warm_start([[1.0]], [1.0], spread=spread)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (7, "sample 1 is not a SamplingInfo but of type int"),
        (b"\x08\x01", "sample 1 is not a SamplingInfo but of type bytes"),
        (SamplingInfo([5, 6], 2**70), "model_iter_id must be from 0 to 2"),
        (SamplingInfo([5, 6], 0, 2**40), "a fingerprint must be from 0 to 2"),
        (SamplingInfo([5, 6], cast("int", 0.5)), "sample 1, .*model_iter_id=0.5.*, is not a record"),
        (SamplingInfo([5, 6], cast("int", "first")), "sample 1, .*first.*, is not a record"),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(sample: Any, message: str) -> None:
    es = ES(np.ones(3))
    infos = es.ask(4)
    with pytest.raises(RecordError, match=message):
        es.tell([infos[0], sample, *infos[2:]], [1.0, 2.0, 3.0, 4.0])
    assert es.tell(infos, [1.0, 2.0, 3.0, 4.0]).used == 4


@pytest.mark.parametrize("key", [[5, "six"], [5.5, 6], [5, None], [2**70, 1], [-1, 6], [5], [5, 6, 7]])
def test_keys_that_are_not_two_integers_are_set_aside(key: Any) -> None:
    es = ES(np.ones(3))
    infos = es.ask(4)
    infos[1].key = key
    report = es.tell(infos, [1.0, 2.0, 3.0, 4.0])
    assert (report.used, report.set_aside.bad_key) == (3, 1)


def test_rewards_that_are_no_sequence_are_refused() -> None:
    es = ES(np.ones(3))
    rewards: Any = (float(number) for number in range(4))
    with pytest.raises(InvalidReward, match="a sequence of numbers, not a generator"):
        es.tell(es.ask(4), rewards)
    rewards = {1.0, 2.0, 3.0, 4.0}
    with pytest.raises(InvalidReward, match="a sequence of numbers, not a set"):
        es.tell(es.ask(4), rewards)


def test_a_reward_that_is_no_number_is_not_logged(tmp_path: Path) -> None:
    reward: Any = "good"
    with LogWriter(tmp_path) as log:
        with pytest.raises(RecordError, match="a reward must be a number, not 'good'"):
            log.reward(SamplingInfo([5, 6]), reward)
        for large in (Decimal("1e400"), -Decimal("1e400"), 10**400, 1e39):
            with pytest.raises(RecordError, match="a reward must be a float32 number"):
                log.reward(SamplingInfo([5, 6]), large)  # type: ignore[arg-type]
        with pytest.raises(RecordError, match="a frame holds up to 65535 bytes"):
            log.sampled(SamplingInfo([5, 6]), context=[0.0] * 20_000, action=0)
        log.reward(SamplingInfo([5, 6]), 1.0)
    assert read_log(tmp_path).rewards == [1.0]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(LogError, match="max_damage must be a share from 0 to 1"):
            read_log(tmp_path, max_damage=wrong)


def test_a_segment_without_a_whole_frame_is_damage_unless_it_is_just_begun(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.reward(SamplingInfo([5, 6]), 1.0)
    begun, noise = tmp_path / "0.evl", tmp_path / "1.evl"
    begun.write_bytes(b"\xe5\x4b" * 512)
    contents = read_log(tmp_path)
    assert (contents.rewards, contents.damaged_bytes, contents.quarantined) == ([1.0], 0, [])
    assert {report.path: report.unread for report in contents.segments}[begun] == 1024
    noise.write_bytes(bytes(1025))
    for max_damage in (0.0, 0.01, 1.0):
        contents = read_log(tmp_path, max_damage=max_damage)
        assert (contents.rewards, contents.damaged_bytes) == ([1.0], 1025)
        (report,) = contents.quarantined
        assert report in contents.segments
        assert (report.path, report.records, report.damage) == (noise, 0, [(0, 1025)])
        assert "completely damaged" in report.problem
        assert noise.stat().st_size == 1025  # a reader moves nothing: an update does, once it is saved
        with pytest.raises(LogError, match=r"1\.evl: it is completely damaged$"):
            read_log(tmp_path, contents.ledger, max_damage=max_damage)  # nothing else is new


def test_a_file_is_not_replaced_by_a_directory(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    agent = ESAgent({}, mlp([3, 2]))
    for save in (agent.save, agent.save_solver, agent.save_inference_model):
        with pytest.raises(SolverError, match="notes is a file"):
            save(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize(("source", "message"), [(3, "not of type int"), ({"sed": 18}, "did you mean seed")])
def test_settings_of_another_kind_and_mistyped_fields_of_the_flat_form_are_reported(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ESAgent(source)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (None, "must be a SamplingInfo, not of type NoneType"),
        (5, "must be a SamplingInfo, not of type int"),
        (SamplingInfo([1.5, 2]), "key"),  # type: ignore[list-item]
        (SamplingInfo([3e8, 2.0**29]), "key"),  # type: ignore[list-item]
        (SamplingInfo(["a", "b"]), "key"),  # type: ignore[list-item]
        (SamplingInfo([1, 2], 1.0), "model_iter_id"),  # type: ignore[arg-type]
        (SamplingInfo([1, 2], 1, "7"), "fingerprint"),  # type: ignore[arg-type]
        (SamplingInfo([1, 2], 1, 7.5), "fingerprint"),  # type: ignore[arg-type]
        (SamplingInfo([1, 2], 1, 2**32), "fingerprint"),
        (SamplingInfo([], 1, 7, 2.5), "identity"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("with_tokens", [False, True])
def test_what_is_no_sample_is_refused_by_name_and_spoils_no_log(
    tmp_path: Path, sample: Any, message: str, with_tokens: bool
) -> None:
    good = SamplingInfo([5, 6], 1, 7)
    with LogWriter(tmp_path, tokens=Tokens([bytes(32)]) if with_tokens else None) as log:
        for verb in (log.sampled, lambda sample: log.reward(sample, 1.0)):
            with pytest.raises(EvolutionError, match="tokens only" if with_tokens and verb != log.sampled else message):
                verb(sample)
        log.reward(log.sampled(good) or good, 1.0)
    contents = read_log(tmp_path)
    assert (contents.infos, len(contents.segments), contents.damaged_bytes) == ([good], 1, 0)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"context": "abc", "action": 1}, "context must be"),
        ({"context": ["1.0"], "action": 1}, "context must be .* of type <U3"),
        ({"context": np.array(["2020-01-01"], "datetime64[s]"), "action": 1}, "context must be"),
        ({"context": [1.0, None], "action": 1}, r"context must be .* has no \[None\]"),
        ({"context": [object()], "action": 1}, "context must be"),
        ({"context": [[1.0], [2.0, 3.0]], "action": 1}, "context must be"),
        ({"action": 1.5}, "action must be an integer"),
        ({"action": "1"}, "action must be an integer"),
        ({"action": 1, "propensity": "high"}, "propensity a number"),
        ({"action": 1, "propensity": None}, "propensity a number"),
    ],
)
def test_what_is_no_decision_is_refused_by_name(tmp_path: Path, odd: dict[str, Any], message: str) -> None:
    with LogWriter(tmp_path) as log, pytest.raises(RecordError, match=message):
        log.sampled(SamplingInfo([5, 6], 1, 7), **odd)


def agent() -> ESAgent:
    return ESAgent({}, mlp([4, 2]))


def without_solver() -> ESAgent:
    agent = ESAgent({})
    agent._model = mlp([4, 2])
    return agent


TAKE_A_PATH: dict[str, Callable[[str], object]] = {
    "LogWriter": LogWriter,
    "read_log": read_log,
    "read_logs": lambda path: read_log([path]),
    "read_decisions": off_policy.read_decisions,
    "write_raw": lambda path: write_raw(path, [], []),
    "prune": lambda path: prune([path], {}),
    "compact": lambda path: compact([path], {}, "archive"),
    "compact_into": lambda path: compact(["."], {}, path),
    "Config.load": lambda path: Config.load(f"{path}.toml"),
    "load_config": lambda path: ESAgent(f"{path}.toml"),
    "load_inference_model": lambda path: ESAgent({}).load_inference_model(path, mlp([4, 2])),
    "load_any_model": lambda path: ESAgent({}).load_inference_model(path),
    "load_solver": lambda path: without_solver().load_solver(path),
    "save": lambda path: agent().save(path),
    "save_solver": lambda path: agent().save_solver(path),
    "save_inference_model": lambda path: agent().save_inference_model(path),
    "update_from_log": lambda path: agent().update_from_log(path),
    "replay_log": lambda path: agent().replay_log(".", path),
    "update_lock": lambda path: update_lock(path).__enter__(),
    "warehouse": lambda path: AsyncESAgent(mlp([4, 2]), {"async_es": {"model_warehouse": path}}),
    "Tokens.load": Tokens.load,
    "create_secret": create_secret,
    "rotate_secret": rotate_secret,
    "NumpyModel.save": lambda path: mlp([4, 2]).save(path),
    "NumpyModel.load": lambda path: mlp([4, 2]).load(path),
}


@pytest.mark.parametrize("path", ["a\0b", "\ud800"], ids=["nul", "surrogate"])
@pytest.mark.parametrize("verb", TAKE_A_PATH.values(), ids=TAKE_A_PATH)
def test_what_is_no_path_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[[str], object], path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvolutionError, match="is no path: "):
        verb(path)
    assert not list(tmp_path.iterdir())


@every
def test_masked_rewards_are_set_aside(name: str) -> None:
    es, other = search(name), search(name)
    rewards = np.ma.array(
        [1.0, 2.0, 1e6, 3.0, 4.0, 5.0, 6.0, -1e6], mask=[False, False, True, False, False, False, False, True]
    )
    report = es.tell(es.ask(8), rewards)
    assert (report.used, report.set_aside.not_finite, report.best_reward) == (6, 2, 6.0)
    other.tell(other.ask(8), np.where(rewards.mask, np.nan, rewards.data))
    assert es.mean.tobytes() == other.mean.tobytes()
    assert rewards.data[2] == 1e6


def test_masked_numbers_of_solutions_are_refused() -> None:
    es = CMAES(np.zeros(2))
    with pytest.raises(InvalidReward, match="number 1 has nan"):
        es.inject(np.ones((2, 2)), np.ma.array([1.0, 2.0], mask=[False, True]))
    with pytest.raises(LayoutMismatch, match="solution 0 is not"):
        es.inject(np.ma.array(np.ones((2, 2)), mask=[[True, False], [False, False]]), [1.0, 2.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda graph, log, info: CMAES(np.zeros(2)).inject(graph, [1.0]),
        lambda graph, log, info: CMAES(np.zeros(2)).inject(np.ones((6, 2)), graph),
        lambda graph, log, info: GA(np.zeros(2)).inject(graph, [1.0]),
        lambda graph, log, info: CMAES.warm_start(graph, [1.0]),
        lambda graph, log, info: SepCMAES.warm_start(np.ones((6, 2)), graph),
        lambda graph, log, info: log.sampled(info, context=graph, action=1),
        lambda graph, log, info: ES(graph),
        lambda graph, log, info: MapElites(graph, [0], [1], [2]),
        lambda graph, log, info: MapElites([0.0], graph, [1], [2]),
        lambda graph, log, info: MapElites([0.0], [0], [1], [2]).tell(graph, [1.0], [[0.5]]),
        lambda graph, log, info: MapElites([0.0], [0], [1], [2]).tell([[1.0]], [1.0], graph),
        lambda graph, log, info: MapElites([0.0], [0], [1], [2]).tell([[1.0]], graph, [[0.5]]),
        lambda graph, log, info: off_policy.evaluate(
            off_policy.Decisions(np.ones((2, 1), np.float32), np.ones(2, np.int64), np.ones(2), np.ones(2)),
            lambda _: graph,
        ),
    ],
)
def test_tensors_with_a_gradient_are_refused_by_our_errors(
    call: Callable[[Graph, LogWriter, SamplingInfo], object], tmp_path: Path
) -> None:
    with LogWriter(tmp_path) as log, pytest.raises(EvolutionError, match=r"must be detached: call detach\(\) first"):
        call(Graph(), log, ES(np.zeros(2)).ask(1)[0])


def test_a_map_without_numbers_for_its_descriptors_is_refused() -> None:
    for lower, upper in (("0", [1]), (["0"], [1]), (0, 1), ([0, [1]], [1, 2]), ([1j], [2])):
        with pytest.raises(EvolutionError, match=r"must have one number for each|must .*real numbers"):
            MapElites([0.0], cast("Any", lower), cast("Any", upper), [2])


HUGE = 10**5000  # Python does not print such an integer


@pytest.mark.parametrize(
    "call",
    [
        lambda es, log, info: log.reward(info, HUGE),
        lambda es, log, info: log.sampled(info, context=[HUGE], action=1),
        lambda es, log, info: log.sampled(info, action=HUGE),
        lambda es, log, info: log.sampled(info, action=1, propensity=HUGE),
        lambda es, log, info: log.reward(SamplingInfo([HUGE, 1]), 1.0),
        lambda es, log, info: log.reward(SamplingInfo([1, 2], HUGE), 1.0),
        lambda es, log, info: es.tell([SamplingInfo([1, 2], HUGE)] * 2, [1.0, 2.0]),
        lambda es, log, info: es.tell([SamplingInfo([HUGE, 2])] * 2, [1.0, 2.0]),
        lambda es, log, info: es.candidate(SamplingInfo([HUGE, 2], HUGE, HUGE, HUGE)),
        lambda es, log, info: ES([HUGE, 1]),
        lambda es, log, info: ES(es.mean, {"solver": {"update": {"max_age": HUGE}}}),
        lambda es, log, info: CMAES(es.mean).inject([[HUGE, 1]], [1.0]),
        lambda es, log, info: CMAES(es.mean).inject([[1, 1]], [HUGE]),
    ],
)
def test_integers_of_thousands_of_digits_are_refused_by_our_errors(
    call: Callable[[ES, LogWriter, SamplingInfo], object], tmp_path: Path
) -> None:
    es = ES(np.zeros(2))
    with LogWriter(tmp_path) as log, pytest.raises(EvolutionError) as caught:
        call(es, log, es.ask(1)[0])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "text"), [("c.json", '{"solver": {"update": {"max_age": %s}}}'), ("c.toml", "solver.update.max_age = %s")]
)
def test_settings_of_thousands_of_digits_are_refused_by_name(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text % ("1" + 5000 * "0"), encoding="utf-8")
    with pytest.raises(ConfigError, match=name):
        ES(np.zeros(2), str(tmp_path / name))
