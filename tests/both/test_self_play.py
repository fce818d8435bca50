"""Frozen policies of a backend's agents play without it, and an agent learns against them in remote actors."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl
from parl_core.actors import open_actors
from parl_core.checkpoint import CheckpointStore
from parl_core.env.two_player import ConnectFour, MatrixGame, rock_paper_scissors
from parl_core.env.vector import make_vector_env
from parl_core.export import frozen
from parl_core.seeding import seed_everything
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.recipes import Recipe, SelfPlaySettings
from parl_core.training.results import measure
from parl_core.training.self_play import AgainstOpponents, Arena, Match, OpponentPool, Results


class Uniform:
    def sample(self, observation: Any, rng: np.random.Generator) -> int:
        mask = observation["action_mask"] if isinstance(observation, dict) else np.ones(3)
        return int(rng.choice(np.flatnonzero(mask)))


def agent_for(env: Any, seed: int = 0) -> parl.Agent:
    seed_everything(seed)
    model = parl.networks.for_spaces(env.observation_space, env.action_space, "actor-critic", hidden=(32,))
    return parl.Agent(parl.algorithms.PPO(model, initial_lr=3e-3))


def positions(n: int) -> dict[str, Any]:
    """Batches of what connect four shows."""
    env = AgainstOpponents(ConnectFour, [Uniform()])
    rng = np.random.default_rng(1)
    found: list[dict[str, Any]] = []
    while len(found) < n:
        observation, _ = env.reset(seed=len(found))
        over = False
        while not over:
            found.append(observation)
            observation, _, over, _, _ = env.step(int(rng.choice(np.flatnonzero(observation["action_mask"]))))
    return {key: np.stack([one[key] for one in found[:n]]) for key in found[0]}


def test_a_frozen_policy_draws_as_its_agent_and_does_not_change_with_it() -> None:
    env = AgainstOpponents(ConnectFour, [Uniform()])
    agent, seen = agent_for(env), positions(50)
    agent.explore(seen)
    policy = pickle.loads(pickle.dumps(frozen(agent, env.observation_space, env.action_space)))
    assert (policy(seen) == agent.predict(seen)).all()
    logits = np.asarray(agent.run(agent.alg.model.policy, seen))
    assert policy.scores(seen) == pytest.approx(logits, abs=1e-5)
    one = {key: column[30] for key, column in seen.items()}
    rng = np.random.default_rng(2)
    drawn = np.array([policy.sample(one, rng) for _ in range(4000)])
    possible = one["action_mask"] == 1
    weights = np.where(possible, np.exp(logits[30] - logits[30].max()), 0.0)
    shares = np.bincount(drawn, minlength=7) / 4000
    assert shares == pytest.approx(weights / weights.sum(), abs=0.04)
    before = policy.scores(seen)
    agent.set_weights({name: array + 0.1 for name, array in agent.get_weights().items()})
    assert (policy.scores(seen) == before).all()


def test_a_frozen_policy_with_a_memory_remembers_as_its_agent_and_plays() -> None:
    env = AgainstOpponents(ConnectFour, [Uniform()])
    seed_everything(0)
    model = parl.networks.for_spaces(env.observation_space, env.action_space, memory="gru", memory_size=8)
    agent = parl.Agent(parl.algorithms.PPO(model))
    policy = pickle.loads(pickle.dumps(frozen(agent, env.observation_space, env.action_space)))
    seen, state, of_agent = positions(5), policy.initial_state(), agent.initial_state()
    for turn in range(5):
        one = {key: column[turn] for key, column in seen.items()}
        action, state = policy(one, state=state)
        expected, of_agent = agent.predict(one, state=of_agent)
        assert action == expected
        np.testing.assert_allclose(state["hidden"], of_agent["hidden"], atol=1e-5)
    with Arena(ConnectFour) as arena:
        found = arena.play([Match(policy, Uniform(), games=4)], seed=0)
    assert found[0].games == 4


def test_frozen_opponents_and_ratings_return_from_a_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    env = AgainstOpponents(ConnectFour, [Uniform()])
    agent, seen, pool, other = agent_for(env), positions(20), OpponentPool(), OpponentPool()
    pool.add("untrained", frozen(agent, env.observation_space, env.action_space))
    pool.add("weights", {"layer.weight": np.arange(3.0)})
    pool.record("weights", "untrained", Results(wins=3, losses=1))
    CheckpointStore(tmp_path).write(1, pool.get_state())
    found = CheckpointStore(tmp_path).read_latest()
    assert found is not None
    other.set_state(found.state)
    assert [(p.name, p.rating, p.games) for p in other.players] == [(p.name, p.rating, p.games) for p in pool.players]
    assert (other["untrained"].policy.scores(seen) == pool["untrained"].policy.scores(seen)).all()
    assert other["weights"].policy["layer.weight"].tolist() == [0.0, 1.0, 2.0]


def test_policies_of_several_numbers_are_not_drawn_from() -> None:
    from gymnasium.spaces import Box

    space = Box(-1.0, 1.0, (3,), np.float32)
    model = parl.networks.for_spaces(space, Box(-1.0, 1.0, (2,), np.float32), "actor-critic")
    agent = parl.Agent(parl.algorithms.PPO(model))
    policy = frozen(agent, space, Box(-1.0, 1.0, (2,), np.float32))
    with pytest.raises(ValueError, match="of this policy are 0 choices and 2 numbers"):
        policy.sample(np.zeros(3, np.float32), np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_learns_to_beat_a_frozen_opponent_in_remote_actors() -> None:
    payoff, _ = rock_paper_scissors()
    make_game = partial(MatrixGame, payoff)

    class Rock:
        def sample(self, observation: Any, rng: np.random.Generator) -> int:
            return 0

    env = AgainstOpponents(make_game, [Rock()])
    agent, pool = agent_for(env), OpponentPool()
    pool.add("rock", Rock())
    with open_actors("remote", cpu_num=2) as actors:
        make = partial(AgainstOpponents, make_game, *pool.opponents())
        with make_vector_env(make, 8, actors=actors) as envs:
            train_on_policy(agent, envs, OnPolicySettings(total_steps=3072, n_steps=32, minibatch_size=64), seed=1)
        with Arena(make_game, actors=actors, workers=2) as arena:
            policy = frozen(agent, env.observation_space, env.action_space)
            results = pool.challenge("learned", policy, arena, games=100, seed=2)
    assert results["rock"].score > 0.9
    assert pool["learned"].rating > pool["rock"].rating


def unequal(_: str) -> MatrixGame:
    return MatrixGame(rock_paper_scissors(rock=3.0, scissors=2.0)[0])


def test_measured_self_play_reports_how_far_the_mean_strategy_is_from_the_equilibrium() -> None:
    loop = OnPolicySettings(total_steps=512, n_steps=8, epochs=4, minibatch_size=64, lr=1e-2, gamma=1.0)
    recipe = Recipe(
        SelfPlaySettings(6, loop),
        sizes={"hidden": (16,)},
        environment=f"{__name__}:unequal",
        num_envs=16,
        source="a test",
    )
    shares: list[float] = []
    found = measure("PPO", "unequal prizes", recipe, 0, progress=shares.append)
    assert [step for step, _ in found.curve] == [512 * generation for generation in range(1, 7)]
    assert found.returns == [found.curve[-1][1]]
    assert found.steps == 6 * 512
    assert shares[-1] == 1.0
    # The first generation answers nearly equal chances with one action, which loses up to 2 a game; later ones mix.
    assert -2.0 <= found.curve[0][1] < found.returns[0] <= 0.0
    assert measure("PPO", "unequal prizes", recipe, 0).curve == found.curve
