"""Kinds of environments, and their preprocessing for training and for evaluation."""

import pickle

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.training import StandardEnv
from parl_core.training.trained import EnvKind


@pytest.mark.parametrize(
    ("env_id", "kind", "act_dim", "goal"),
    [
        ("CartPole-v1", EnvKind.DISCRETE, 2, 475.0),
        ("FrozenLake-v1", EnvKind.DISCRETE, 4, 0.7),
        ("Pendulum-v1", EnvKind.CONTINUOUS, 1, None),
    ],
)
def test_the_kind_follows_from_the_spaces(env_id: str, kind: EnvKind, act_dim: int, goal: float | None) -> None:
    env = StandardEnv(env_id)
    assert (env.kind, env.act_dim, env.goal) == (kind, act_dim, goal)


def test_a_number_as_observation_becomes_a_vector() -> None:
    obs, _ = StandardEnv("FrozenLake-v1").make().reset(seed=0)
    assert obs.shape == (16,)
    assert obs.sum() == 1


def test_it_travels_to_actors() -> None:
    env = StandardEnv("CartPole-v1")
    assert env.act_dim == 2
    again = pickle.loads(pickle.dumps(env))
    assert again == env
    assert again.make().reset(seed=0)[0].shape == (4,)


def test_a_table_by_kind_is_read_by_kind() -> None:
    table = {EnvKind.CONTINUOUS: 1, EnvKind.ATARI: 2}
    assert StandardEnv("Pendulum-v1").pick(table) == 1
    with pytest.raises(HyperparameterError, match="of the kind discrete; this program is for atari, continuous"):
        StandardEnv("CartPole-v1").pick(table)


def test_texts_are_keys_of_such_a_table() -> None:
    assert StandardEnv("Pendulum-v1").pick({"continuous": 3}) == 3


def test_an_atari_game_is_four_frames_and_lives_are_episodes_in_training_only() -> None:
    pytest.importorskip("ale_py")
    env = StandardEnv("ALE/Breakout-v5")
    assert (env.kind, env.act_dim, env.goal) == (EnvKind.ATARI, 4, None)
    rng = np.random.default_rng(0)
    lengths = {}
    for name, game in (("life", env.make()), ("game", env.make_to_evaluate())):
        obs, _ = game.reset(seed=1)
        assert obs.shape == (4, 84, 84)
        assert obs.dtype == np.uint8
        steps, over = 0, False
        while not over:
            _, _, terminated, truncated, _ = game.step(rng.integers(4))
            steps, over = steps + 1, terminated or truncated
        lives = game.unwrapped.ale.lives()
        assert lives == (4 if name == "life" else 0)
        lengths[name] = steps
        game.close()
    assert lengths["game"] > 2 * lengths["life"]


def test_rewards_of_an_evaluated_game_are_not_clipped() -> None:
    pytest.importorskip("ale_py")
    env, rewards = StandardEnv("ALE/SpaceInvaders-v5"), {}
    for name, game in (("trained", env.make()), ("played", env.make_to_evaluate())):
        game.reset(seed=0)
        rewards[name] = {game.step(action % 6)[1] for action in range(200)}
        game.close()
    assert rewards["trained"] == {0.0, 1.0}
    assert max(rewards["played"]) > 1.0
