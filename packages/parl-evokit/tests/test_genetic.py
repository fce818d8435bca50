"""GA: who breeds, what a key means, and that parents are made again from their mutations."""

import random
from typing import Any

import numpy as np
import pytest

from parl_evokit import GA, ConfigError, ESAgent, NothingToUpdate, mlp
from parl_evokit.errors import LayoutMismatch
from parl_evokit.noise._spec import splitmix64


def settings(parents: int = 3, elites: int = 1, std: float = 0.3) -> dict[str, Any]:
    sampling = {
        "type": "GA_SAMPLING",
        "gaussian_sampling": {"std": std, "seed": 5},
        "ga_sampling": {"parents": parents, "elites": elites},
    }
    return {"keys": "COUNTER", "solver": {"type": "GA", "sampling": sampling}}


def sphere(x: np.ndarray) -> float:
    return -float((x.astype(np.float64) ** 2).sum())


def generation(ga: GA, n: int = 30) -> None:
    infos = ga.ask(n)
    ga.tell(infos, [sphere(x) for x in ga.candidates(infos)])


def test_the_best_children_become_parents_and_the_very_best_the_model() -> None:
    ga = GA(np.ones(6), settings(parents=3, elites=0))
    infos = ga.ask(8)
    children = ga.candidates(infos)
    rewards = [0.0, 5.0, 1.0, 9.0, 2.0, 7.0, 3.0, 4.0]
    ga.tell(infos, rewards)
    assert ga.sampler.parents is not None
    assert (ga.sampler.parents == children[[3, 5, 1]]).all()
    assert (ga.mean == children[3]).all()
    assert ga.best is not None
    assert (ga.best.parameters == children[3]).all()


def test_a_key_says_whose_child_a_sample_is() -> None:
    ga = GA(np.ones(6), settings(parents=3, elites=0))
    generation(ga)
    parents = ga.sampler.parents
    assert parents is not None
    for info in ga.ask(20):
        key = info.noise_key
        parent = parents[splitmix64(key >> 1, 2**32) % 3]
        assert (ga.candidate(info) == ga.sampler.noise.perturb(parent, key, 0.3)).all()


def test_an_elite_stays_until_a_child_is_better() -> None:
    ga = GA(np.ones(6), settings(parents=2, elites=1))
    infos = ga.ask(4)
    ga.tell(infos, [1.0, 10.0, 2.0, 3.0])
    best = ga.mean.copy()
    ga.tell(ga.ask(4), [4.0, 5.0, 6.0, 7.0])
    assert (ga.mean == best).all()
    infos = ga.ask(4)
    better = ga.candidates(infos)[2]
    ga.tell(infos, [0.0, 0.0, 11.0, 0.0])
    assert (ga.mean == better).all()


def test_a_sample_of_the_model_that_is_told_twice_counts_once() -> None:
    once, twice = (GA(np.ones(6), settings(parents=2, elites=1)) for _ in range(2))
    for ga in (once, twice):
        ga.tell(ga.ask(4), [1.0, 10.0, 2.0, 3.0])
    infos = [*once.ask(3), *once.ask(3)]  # two evaluations of the model
    assert [info for ask in (twice.ask(3), twice.ask(3)) for info in ask] == infos
    rewards = [6.0, 1.0, 2.0, 5.0, 1.0, 2.0]
    assert once.tell(infos, rewards).control == 2
    report = twice.tell([*infos, infos[0], infos[1]], [*rewards, 6.0, 1.0])
    assert (report.used, report.control, report.repeated) == (4, 2, 2)
    assert once.state()["evaluations"].tolist() == twice.state()["evaluations"].tolist() == [3, 1]
    assert once.state()["rewards"].tolist() == twice.state()["rewards"].tolist() == [7.0, 2.0]


def test_without_elites_a_worse_generation_replaces_a_better_one() -> None:
    ga = GA(np.ones(6), settings(parents=2, elites=0))
    ga.tell(ga.ask(4), [1.0, 10.0, 2.0, 3.0])
    infos = ga.ask(4)
    expected = ga.candidates(infos)[3]
    ga.tell(infos, [0.0, 1.0, 2.0, 3.0])
    assert (ga.mean == expected).all()


def test_it_climbs_the_sphere_and_keeps_what_it_found() -> None:
    ga = GA(np.ones(6), settings(parents=5, std=0.1))
    worth = []
    for _ in range(60):
        generation(ga)
        worth.append(sphere(ga.mean))
    assert worth == sorted(worth), "with an elite the model never becomes worse"
    assert worth[-1] > -0.1


def test_order_of_samples_changes_no_bit() -> None:
    digests = set()
    for seed in range(4):
        ga = GA(np.ones(50), settings())
        for _ in range(5):
            samples = list(enumerate(ga.ask(12)))
            random.Random(seed).shuffle(samples)
            report = ga.tell([info for _, info in samples], [(7 * i) % 5 for i, _ in samples])
        digests.add(report.parameters_sha256)
    assert len(digests) == 1


def test_a_resumed_search_makes_its_parents_again_from_their_mutations() -> None:
    straight = GA(np.ones(10), settings(elites=0))
    lengths = set()
    for _ in range(230):  # chains begin anew twice
        generation(straight, n=6)
        state = straight.state()
        lengths.add(int(state["chain_lengths"].max()))
    assert max(lengths) == 100
    assert state["chains"].dtype == np.uint64
    resumed = GA(straight.mean, settings(elites=0))
    resumed.load_state(state)
    assert resumed.sampler.parents is not None
    assert straight.sampler.parents is not None
    assert (resumed.sampler.parents == straight.sampler.parents).all()
    infos = straight.ask(9)
    rewards = [float(i) for i in range(9)]
    assert resumed.tell(infos, rewards).parameters_sha256 == straight.tell(infos, rewards).parameters_sha256


def test_a_resumed_search_keeps_its_parents_where_the_settings_have_another_std() -> None:
    before = GA(np.ones(10), settings(std=0.3))
    for _ in range(5):
        generation(before)
    resumed = GA(before.mean, settings(std=0.03))
    resumed.load_state(before.state())
    assert resumed.sampler.parents is not None
    assert before.sampler.parents is not None
    assert (resumed.sampler.parents == before.sampler.parents).all()
    generation(resumed)
    again = GA(resumed.mean, settings(std=0.03))
    again.load_state(resumed.state())
    assert again.sampler.parents is not None
    assert (again.sampler.parents == resumed.sampler.parents).all()


def test_a_state_of_another_kind_or_size_is_refused() -> None:
    ga = GA(np.ones(4), settings())
    with pytest.raises(LayoutMismatch, match="lacks origins, origin_of, chain_lengths, chains, rewards"):
        ga.load_state({"model_iter_id": np.array(1)})
    with pytest.raises(LayoutMismatch, match="does not fit 4 parameters"):
        ga.load_state(GA(np.ones(5), settings()).state())
    with pytest.raises(LayoutMismatch, match="does not fit"):
        ga.load_state(ga.state() | {"origin_of": np.array([7])})


def test_children_of_older_parents_are_set_aside() -> None:
    ga = GA(np.ones(4), settings())
    infos = ga.ask(8)
    ga.tell(infos[:4], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(NothingToUpdate, match="4 too old"):
        ga.tell(infos[4:], [1.0] * 4)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="parents must be 1 or more, not 0"):
        GA(np.ones(4), settings(parents=0))
    with pytest.raises(ConfigError, match="GA_SAMPLING is for GA; BASIC_ES needs GAUSSIAN_SAMPLING"):
        ESAgent({"solver": {"sampling": {"type": "GA_SAMPLING"}}}, mlp([4, 2]))


def test_the_agent_uses_it_when_the_settings_say_so(tmp_path: Any) -> None:
    agent = ESAgent(settings(), mlp([4, 3, 2]))
    clone = agent.clone()
    for _ in range(3):
        agent.update([clone.add_noise() for _ in range(6)], [5.0, 3.0, 1.0, 2.0, 4.0, 0.0])
    agent.save(tmp_path / "d")
    restored = ESAgent()
    restored.load_config(settings())
    restored.load_inference_model(tmp_path / "d", model=mlp([4, 3, 2]))
    restored.load_solver(tmp_path / "d")
    info = clone.add_noise()
    other = restored.clone()
    other.apply_noise(info)
    for name, array in clone.parameters().items():
        assert (other.parameters()[name] == array).all()


def test_a_lucky_elite_is_found_out() -> None:
    es = GA(np.zeros(3), {"solver": {"type": "GA", "sampling": {"gaussian_sampling": {"std": 0.5, "seed": 3}}}})
    infos = es.ask(20)
    es.tell(infos, [100.0, *[-float((es.candidate(info) ** 2).sum()) for info in infos[1:]]])
    lucky = es.mean.copy()
    for _ in range(8):
        infos = es.ask(20)
        assert [info.noise_key for info in infos].count(0) == 1
        assert (es.candidate(infos[0]) == es.mean).all()
        es.tell(infos, [-float((es.candidate(info) ** 2).sum()) for info in infos])
    assert (es.mean == lucky).all()  # 100 and eight others: its mean is still the best
    for _ in range(200):
        infos = es.ask(20)
        es.tell(infos, [-10.0 if info.noise_key == 0 and (es.mean == lucky).all() else -1.0 for info in infos])
    assert (es.mean != lucky).any()


def test_at_most_half_of_the_children_become_parents() -> None:
    es = GA(np.zeros(3), {"solver": {"type": "GA", "sampling": {"ga_sampling": {"parents": 20, "elites": 0}}}})
    es.tell(es.ask(12), np.arange(12.0))
    assert es.sampler.parents is not None
    assert len(es.sampler.parents) == 6
