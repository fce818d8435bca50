"""Making the agent of a gate, training and evaluating it.

Everything is made from `parl`'s public names: the ready-made networks, the algorithms and the loops.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from itertools import count
from typing import Any

import data
import gymnasium
import minatar_networks
import numpy as np
from gates import GATES, Gate
from minatar_game import GAMES, MinAtarGame
from recipes import RECIPES, Recipe

import parl
from parl_core import backends
from parl_core.env.normalize import NormalizeVector, wrap_rms
from parl_core.env.vector import make_vector_env
from parl_core.offline import OfflineDataset
from parl_core.seeding import seed_everything
from parl_core.training import (
    ActorLearnerSettings,
    evaluate,
    open_actors,
    train_actor_learner,
    train_by_episodes,
    train_on_policy,
)
from parl_core.training.events import Evaluation
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.offline import OfflineSettings, evaluate_with_target_return, train_offline

__all__ = ["Trained", "logged", "train"]

EPISODES_WHILE_TRAINING, EVALUATIONS = 10, 20
SEED_WHILE_TRAINING, SEED_AFTER = 2**31, 2**30


@dataclass
class Trained:
    """The result of a run: the curve `[(step, mean return)]`, and the returns of the final evaluation."""

    curve: list[tuple[int, float]]
    returns: list[float]
    steps: int


@cache
def logged(env_id: str) -> OfflineDataset:
    """The data of a task."""
    return data.recorded(env_id)


def train(key: str, seed: int, *, share: float = 1.0, progress: Callable[[float], None] = lambda _: None) -> Trained:
    """Train and evaluate one agent on the current backend.

    Args:
        key: of the gate.
        seed: of weights, environments and sampling.
        share: of the gate's steps; below 1 only to see that everything runs.
        progress: told at each evaluation which share of the steps is over.
    """
    gate, recipe = GATES[key], RECIPES[key]
    steps = max(int(gate.steps * share), 1)
    seed_everything(seed)
    agent = _agent(gate, recipe, seed)
    curve: list[tuple[int, float]] = []
    statistics: list[Any] = []  # of the normalised observations of training
    final = _evaluation(agent, gate, statistics)

    evaluations = count(1)

    def watched() -> Evaluation:
        progress(min(next(evaluations) / EVALUATIONS, 1.0))
        return final(EPISODES_WHILE_TRAINING, SEED_WHILE_TRAINING)

    every = max(steps // EVALUATIONS, 1)
    common: dict[str, Any] = {"evaluator": watched, "evaluate_every": every, "seed": seed}
    if gate.algorithm == "PolicyGradient":
        env = _maker(gate.env)()
        returns = train_by_episodes(agent, env, steps, log_every=steps, test_every=every, seed=seed)
        curve = [((i + 1) * every, value) for i, value in enumerate(returns)]
    elif isinstance(recipe.loop, OfflineSettings):
        loop = replace(recipe.loop, updates=steps, report_every=every)
        ended = train_offline(agent, logged(gate.env).scaled_rewards(recipe.reward_scale), loop, **common)
        curve = [(one.step, one.mean) for one in ended.evaluations]
    elif isinstance(recipe.loop, ActorLearnerSettings):
        by_actors = recipe.loop.with_total_steps(steps)
        make = partial(_agent_in_actor, backends.current().name, key, seed)
        with open_actors("remote", cpu_num=by_actors.n_actors) as actors:
            ended = train_actor_learner(agent, make, _maker(gate.env), by_actors, actors=actors, **common)
        steps, curve = ended.step, [(one.step, one.mean) for one in ended.evaluations]
    else:
        loop = recipe.loop.with_total_steps(steps)
        run = train_off_policy if isinstance(loop, OffPolicySettings) else train_on_policy
        with make_vector_env(_maker(gate.env), recipe.num_envs) as envs:
            seen: Any = envs
            if recipe.normalize:
                seen = NormalizeVector(envs, gamma=loop.gamma)
                statistics.append(seen.ob_rms)
            ended = run(agent, seen, loop, **common)
        steps, curve = ended.step, [(one.step, one.mean) for one in ended.evaluations]
    return Trained(curve, final(100 if share >= 1.0 else 3, SEED_AFTER).returns, steps)


def _agent(gate: Gate, recipe: Recipe, seed: int) -> Any:
    backend = backends.current()
    env = _maker(gate.env)()
    space = env.action_space
    act_dim = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(space.shape[0])
    obs_shape = env.observation_space.shape
    env.close()
    algorithm = getattr(parl.algorithms, gate.algorithm)
    if gate.algorithm == "PolicyGradient":
        return parl.Agent(algorithm(_softmax_policy(act_dim), **recipe.algorithm), seed=seed)
    if gate.algorithm == "DecisionTransformer":
        network = import_module(f"parl_{backend.name}.transformer").TrajectoryTransformer
        model = network(int(np.prod(obs_shape)), act_dim, **recipe.sizes)
    else:
        networks = minatar_networks if gate.env in GAMES else import_module(f"parl_{backend.name}.networks")
        model = getattr(networks, recipe.network)(act_dim, **recipe.sizes)
    return parl.Agent(algorithm(model, **recipe.algorithm), seed=seed, obs_ndim=len(obs_shape))


def _agent_in_actor(backend: str, key: str, seed: int) -> Any:
    parl.set_backend(backend)
    return _agent(GATES[key], RECIPES[key], seed)


def _maker(env_id: str) -> Callable[[], Any]:
    return (
        partial(MinAtarGame, env_id) if env_id in GAMES else partial(gymnasium.make, env_id, disable_env_checker=True)
    )


def _softmax_policy(act_dim: int) -> Any:
    class Policy(parl.Model):
        """The first network of the PARL 1.x manual: one hidden layer of ten units an action."""

        def __init__(self) -> None:
            self.fc1 = parl.layers.fc(size=act_dim * 10, act="tanh")
            self.fc2 = parl.layers.fc(size=act_dim, act="softmax")

        def forward(self, obs: Any) -> Any:
            return self.fc2(self.fc1(obs))

    return Policy()


def _evaluation(agent: Any, gate: Gate, statistics: list[Any]) -> Callable[[int, int], Evaluation]:
    if gate.algorithm == "DecisionTransformer":
        wanted = float(np.quantile(logged(gate.env).episode_returns, 0.9))
        return lambda episodes, seed: evaluate_with_target_return(agent, gate.env, wanted, episodes, seed=seed)

    def make() -> Any:
        env = _maker(gate.env)()
        return wrap_rms(env, None, test=True, ob_rms=statistics[0]) if statistics else env

    return lambda episodes, seed: evaluate(agent, make, episodes, seed=seed)
