"""Results of recipes: one measured run, the record of it, and its repetition (`parl verify`).

    recipe, seed ──> measure ──> Measured ──> record ──> <backend>-<seed>.json ──> verify ──> the same? inside?

Protocol: the weights at the end of training play 100 episodes with the deterministic policy, on seeds that training and
its evaluations do not use. Recipes are tuned on seeds below 100 and reported, once, on `REPORT_SEEDS`.
"""

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from parl_core import backends
from parl_core.actors import open_actors
from parl_core.env.joint import is_joint, make_joint_env
from parl_core.env.normalize import NormalizeVector, wrap_rms
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.offline import OfflineDataset
from parl_core.seeding import seed_everything
from parl_core.stats import Interval, bootstrap_interval, interquartile_mean
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.apex import ApexSettings, train_apex
from parl_core.training.episodes import train_by_episodes
from parl_core.training.evaluation import evaluate
from parl_core.training.events import Evaluation
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.offline import OfflineSettings, evaluate_with_target_return, train_offline
from parl_core.training.on_policy import train_on_policy
from parl_core.training.recipes import NETWORKS, EpisodeSettings, Recipe, SelfPlaySettings
from parl_core.training.self_play import AgainstOpponents, OpponentPool
from parl_core.training.trained import Trained

__all__ = [
    "REPORT_SEEDS",
    "Measured",
    "Verification",
    "logged",
    "machine",
    "measure",
    "read_result",
    "report_seeds",
    "verify",
]

REPORT_SEEDS = tuple(range(100, 200))
"""The published list of seeds for reports, taken from its beginning; recipes are tuned on seeds below 100."""

EPISODES_WHILE_TRAINING, EVALUATIONS, EPISODES_AFTER = 10, 20, 100
SEED_WHILE_TRAINING, SEED_AFTER = 2**31, 2**30

_RESULT: dict[str, Any] = {  # fields of a result that are read
    "gate": str,
    "backend": str,
    "seed": int,
    "steps": int,
    "returns": list,
    "curve": list,
    "wall_s": (int, float),
    "cpu_s": (int, float),
    "source": str,
}


def report_seeds(backend: str, cpu_minutes: float) -> tuple[int, ...]:
    """Return the seeds that a row reports, by the cost of one run.

    Below 15 CPU minutes: ten on torch and five on paddle. Below two hours: five and two. Above: three on torch alone.
    """
    torch, paddle = (10, 5) if cpu_minutes < 15 else (5, 2) if cpu_minutes < 120 else (3, 0)
    return REPORT_SEEDS[: torch if backend == "torch" else paddle]


@dataclass
class Measured:
    """The measurements of a run.

    Attributes:
        curve: Evaluations while training, `[(step, mean return)]`.
        returns: The returns of the episodes after training.
        steps: The steps taken.
    """

    curve: list[tuple[int, float]]
    returns: list[float]
    steps: int


def measure(
    algorithm: str,
    env: str,
    recipe: Recipe,
    seed: int,
    *,
    episodes: int = EPISODES_AFTER,
    progress: Callable[[float], None] = lambda _: None,
) -> Measured:
    """Train one agent on the current backend and evaluate it.

    Args:
        algorithm: Name of its class.
        env: The registered id, or a name of `make_joint_env`; for self-play any name: the recipe makes the game.
        recipe: The recipe with the numbers to use, with the steps of the run.
        seed: The seed of weights, environments and sampling.
        episodes: The number of episodes of the evaluation after training.
        progress: The function that is called at each evaluation with the share of the steps that is over.
    """
    steps = recipe.steps
    seed_everything(seed)
    if isinstance(recipe.loop, SelfPlaySettings):
        return _by_self_play(algorithm, env, recipe, seed, progress)
    agent = _agent(algorithm, env, recipe, seed)
    statistics: list[Any] = []  # statistics of the observations in training
    final = _evaluation(agent, algorithm, env, recipe, statistics)
    evaluations = count(1)

    def watched() -> Evaluation:
        progress(min(next(evaluations) / EVALUATIONS, 1.0))
        return final(EPISODES_WHILE_TRAINING, SEED_WHILE_TRAINING)

    every = max(steps // EVALUATIONS, 1)
    common: dict[str, Any] = {"evaluator": watched, "evaluate_every": every, "seed": seed}
    loop = recipe.loop
    if isinstance(loop, EpisodeSettings):
        made = _maker(env, recipe)()
        returns = train_by_episodes(agent, made, steps, log_every=steps, test_every=every, seed=seed)
        curve = [((i + 1) * every, value) for i, value in enumerate(returns)]
        return Measured(curve, final(episodes, SEED_AFTER).returns, steps)
    if isinstance(loop, OfflineSettings):
        data = logged(env, recipe.log).scaled_rewards(recipe.reward_scale)
        ended = train_offline(agent, data, replace(loop, report_every=every), **common)
    elif isinstance(loop, (ActorLearnerSettings, ApexSettings)):
        make = partial(_agent_in_actor, backends.current().name, algorithm, env, recipe, seed)
        apart: Any = train_actor_learner if isinstance(loop, ActorLearnerSettings) else train_apex
        with open_actors("remote", cpu_num=loop.n_actors) as actors:
            ended = apart(agent, make, _maker(env, recipe), loop, actors=actors, **common)
    else:
        run: Any = train_off_policy if isinstance(loop, OffPolicySettings) else train_on_policy
        with make_vector_env(_maker(env, recipe), recipe.num_envs) as envs:
            seen: Any = envs
            if recipe.normalize:
                seen = NormalizeVector(envs, gamma=loop.gamma)
                statistics.append(seen.ob_rms)
            ended = run(agent, seen, loop, **common)
    curve = [(one.step, one.mean) for one in ended.evaluations]
    taken = steps if isinstance(loop, OfflineSettings) else ended.step
    return Measured(curve, final(episodes, SEED_AFTER).returns, taken)


def _by_self_play(algorithm: str, env: str, recipe: Recipe, seed: int, progress: Callable[[float], None]) -> Measured:
    """Return the measurements of fictitious self-play; a return is minus the exploitability of the mean strategy."""
    backend, loop, make = backends.current(), recipe.loop, _maker(env, recipe)
    game = make()
    observation, action = game.observation_space("player_0"), game.action_space("player_0")

    def fresh() -> Any:
        model = backend.networks.for_spaces(observation, action, "actor-critic", **recipe.sizes)
        return backend.Agent(getattr(backend.algorithms, algorithm)(model, **recipe.algorithm), seed=seed)

    pool = OpponentPool("uniform")
    pool.add("generation 0", _Strategy.of(fresh()))
    curve, every = [], max(loop.generations // EVALUATIONS, 1)
    for generation in range(1, loop.generations + 1):
        agent = fresh()  # a nearly deterministic policy changes slowly
        against = partial(AgainstOpponents, make, *pool.opponents())
        with make_vector_env(against, recipe.num_envs) as envs:
            train_on_policy(agent, envs, loop.loop, seed=1_000 * seed + generation)
        pool.add(f"generation {generation}", _Strategy.of(agent))
        if generation % every == 0 or generation == loop.generations:
            curve.append((generation * loop.loop.total_steps, -_exploitability(game.payoff, pool)))
            progress(generation / loop.generations)
    return Measured(curve, [curve[-1][1]], recipe.steps)


@dataclass(frozen=True)
class _Strategy:
    """The probabilities of a policy whose observation is a constant 1."""

    chances: Any

    @classmethod
    def of(cls, agent: Any) -> "_Strategy":
        alg = agent.alg
        output = alg.model.policy(alg._tensor(np.ones((1, 1), np.float32)))
        logits = np.asarray(alg._read(output), np.float64)[0]
        weights = np.exp(logits - logits.max())
        return cls(weights / weights.sum())

    def sample(self, observation: Any, rng: np.random.Generator) -> int:  # noqa: ARG002 - nothing is seen
        return int(rng.choice(len(self.chances), p=self.chances))


def _exploitability(payoff: Any, pool: OpponentPool) -> float:
    """Return the gain per game of a best response to the mean of all players in a skew-symmetric matrix game."""
    return float((payoff @ np.mean([player.policy.chances for player in pool.players], axis=0)).max())


def machine() -> dict[str, Any]:
    """Describe this machine: processor, number of processors, and system."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {"cpu": name, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def read_result(path: Path) -> dict[str, Any]:
    """Return the result of a run.

    Raises:
        ValueError: The file is empty or broken, or not a result; the message names it.
    """
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a result of a run: {error}") from error
    wrong = [
        key for key, kind in _RESULT.items() if not isinstance(result, dict) or not isinstance(result.get(key), kind)
    ]
    if wrong or not result["returns"]:
        raise ValueError(f"{path} is not a result of a run: {', '.join(wrong) or 'returns'} missing or of another kind")
    return dict(result)


@dataclass(frozen=True)
class Verification:
    """A result and its repetition.

    Attributes:
        recorded: The recorded figure: a run's mean return, or the interquartile mean over the runs of a row.
        repeated: The figure of the repetition.
        interval: The interval in which the repetition should lie: for a run the range of all runs of its row, for a row
            the 95 % bootstrap interval of its interquartile mean.
        same: Whether all returns are equal.
        differences: The differences from the record: versions, processor, commit.
    """

    recorded: float
    repeated: float
    interval: Interval
    same: bool
    differences: tuple[str, ...] = ()

    @property
    def inside(self) -> bool:
        """Return whether the repetition lies in the interval."""
        return self.same or self.interval.low <= self.repeated <= self.interval.high

    def __str__(self) -> str:
        low, high = self.interval
        said = "the same returns" if self.same else "inside" if self.inside else "OUTSIDE"
        lines = [
            f"recorded {self.recorded:.1f}, repeated {self.repeated:.1f}, interval [{low:.1f}, {high:.1f}]: {said}"
        ]
        return "\n".join([*lines, *(f"not as recorded: {one}" for one in self.differences)])


def verify(path: Path, *, progress: Callable[[str, float], None] = lambda _, __: None) -> Verification:
    """Repeat a result from its own record, on the backend that it names, and compare.

    Args:
        path: The path of one run's result, or `<folder of a row>/<backend>` for all runs of the row.
        progress: The function that is called for each run with its name and the share of it that is over.

    Raises:
        CheckpointError: The result is missing, or its record is too old to be repeated.
        HyperparameterError: Its settings do not suit this version, or its environment or network is not available.
    """
    one = path.suffix == ".json"
    backend = path.name.partition("-")[0]
    try:
        row = [read_result(file) for file in sorted(path.parent.glob(f"{backend}-*.json"))]
        chosen = [read_result(path)] if one else row
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if not chosen:
        raise CheckpointError(f"{path} is neither the result of a run nor a row: pass FOLDER/torch or a .json file")
    if not all(isinstance(result.get("recipe"), dict) for result in chosen):
        raise CheckpointError(f"{path} was recorded without its numbers, by an older version: it cannot be repeated")
    backends.set_backend(backend)
    recorded = [float(np.mean(result["returns"])) for result in chosen]
    again = []
    for result in chosen:
        recipe = Recipe.from_json(result["recipe"])
        report = partial(progress, f"{result['algorithm']} on {result['env']}, {backend}, seed {result['seed']}")
        report(0.0)
        count = len(result["returns"])
        done = measure(result["algorithm"], result["env"], recipe, result["seed"], episodes=count, progress=report)
        again.append(done.returns)
    repeated = [float(np.mean(returns)) for returns in again]
    of_row = [float(np.mean(result["returns"])) for result in row]
    return Verification(
        float(interquartile_mean(recorded)),
        float(interquartile_mean(repeated)),
        Interval(min(of_row), max(of_row)) if one else bootstrap_interval(recorded),
        again == [result["returns"] for result in chosen],
        _differences(chosen[0]),
    )


def _differences(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences from the record of a result: versions of packages, Python, processor."""
    before = {**result.get("versions", {}), "Python": result.get("python"), **result.get("machine", {})}
    now: dict[str, Any] = {"Python": platform.python_version(), **machine()}
    for package in result.get("versions", {}):
        with suppress(PackageNotFoundError):
            now[package] = version(package)
    changed = [name for name in before if name in now and before[name] not in (None, now[name])]
    return tuple(f"{name} was {before[name]}, is {now[name]}" for name in changed)


# Agents, environments, logs


def _agent(algorithm: str, env_id: str, recipe: Recipe, seed: int) -> Any:
    backend = backends.current()
    if getattr(backend.algorithms, algorithm).TEAM:
        arguments, sizes = dict(recipe.algorithm), dict(recipe.sizes)
        return Trained(algorithm, env_id, backend.name, arguments=arguments, seed=seed, network=sizes).make_agent()
    env = _maker(env_id, recipe)()
    space, obs_shape = env.action_space, env.observation_space.shape
    env.close()
    act_dim = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape))
    name = recipe.network or NETWORKS[algorithm]
    if name == "softmax_policy":
        model = _softmax_policy(backend, act_dim)
    elif name == "TrajectoryTransformer":
        model = backend.transformer.TrajectoryTransformer(int(np.prod(obs_shape)), act_dim, **recipe.sizes)
    else:
        model = (_found(name) if ":" in name else getattr(backend.networks, name))(act_dim, **recipe.sizes)
    made = getattr(backend.algorithms, algorithm)(model, **recipe.algorithm)
    return backend.Agent(made, seed=seed, obs_ndim=len(obs_shape))


def _agent_in_actor(backend: str, algorithm: str, env: str, recipe: Recipe, seed: int) -> Any:
    backends.set_backend(backend)
    return _agent(algorithm, env, recipe, seed)


def _maker(env_id: str, recipe: Recipe) -> Callable[[], Any]:
    if recipe.environment:
        return partial(_found(recipe.environment), env_id)
    if is_joint(env_id):
        return partial(make_joint_env, env_id)
    return partial(gymnasium.make, env_id, disable_env_checker=True)


def _found(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HyperparameterError(
            f"this recipe needs {path}, which cannot be imported here ({error}): add the folder of {module}.py to "
            "PYTHONPATH, or install what it imports"
        ) from error


def _softmax_policy(backend: backends.Backend, act_dim: int) -> Any:
    model: Any = backend.Model
    fc = backend.layers.fc

    class Policy(model):  # type: ignore[misc]  # its base class is known at run time only
        """The first network of the PARL 1.x manual: one hidden layer of ten units an action."""

        def __init__(self) -> None:
            self.fc1 = fc(size=act_dim * 10, act="tanh")
            self.fc2 = fc(size=act_dim, act="softmax")

        def forward(self, obs: Any) -> Any:
            return self.fc2(self.fc1(obs))

    return Policy()


def _evaluation(
    agent: Any, algorithm: str, env: str, recipe: Recipe, statistics: list[Any]
) -> Callable[[int, int], Evaluation]:
    if algorithm == "DecisionTransformer":
        wanted = float(np.quantile(logged(env, recipe.log).episode_returns, 0.9))
        return lambda episodes, seed: evaluate_with_target_return(agent, env, wanted, episodes, seed=seed)
    made = _maker(env, recipe)

    def make() -> Any:
        return wrap_rms(made(), None, test=True, ob_rms=statistics[0]) if statistics else made()

    return lambda episodes, seed: evaluate(agent, make, episodes, seed=seed)


@cache
def logged(env_id: str, log: str = "scripted") -> OfflineDataset:
    """Return the logged data of a task, always the same.

    Args:
        env_id: Pendulum-v1: energy is pumped in until the pendulum is near the top, where a linear controller holds it,
            with Gaussian noise; actions lie in [-1, 1]. CartPole-v1: pushes towards where the pole falls, 40 % of them
            random.
        log: `"scripted"`: 200 episodes of that policy, every fifth at random. `"random"`: 1,000 episodes at random.

    Raises:
        HyperparameterError: There are no such data.
    """
    if log not in _EPISODES or env_id not in _SCRIPTS:
        raise HyperparameterError(
            f"there is no log {log!r} of {env_id}: {', '.join(_EPISODES)} of {', '.join(_SCRIPTS)}"
        )
    rng, episodes = np.random.default_rng(1), _EPISODES[log]
    env = gymnasium.make(env_id, disable_env_checker=True)
    act = _SCRIPTS[env_id]
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            action = act(obs, rng, at_random=log == "random" or episode % 5 == 0)
            scaled = 2.0 * np.asarray(action, np.float32) if env_id == "Pendulum-v1" else action
            after, reward, terminated, truncated, _ = env.step(scaled)
            rows.append((obs, action, reward, after, terminated, truncated))
            obs, over = after, terminated or truncated
    env.close()
    names = ("obs", "action", "reward", "next_obs", "terminal", "truncated")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return OfflineDataset.from_arrays(columns, f"{log} {env_id}, {episodes} episodes")


def _swing_up(obs: Any, rng: np.random.Generator, *, at_random: bool) -> Any:
    if at_random:
        return rng.uniform(-1.0, 1.0, 1).astype(np.float32)
    cos, sin, speed = obs
    angle = np.arctan2(sin, cos)
    if cos > 0.9:
        torque = -(8.0 * angle + 1.5 * speed) / 2.0
    else:
        energy = 0.5 * speed**2 / 3.0 + 5.0 * (cos - 1.0)  # about the top, where it should be 0
        torque = np.sign(speed) * (1.0 if energy < 0.0 else -1.0)
    return np.clip(torque + rng.normal(0.0, 0.4, 1), -1.0, 1.0).astype(np.float32)


def _balance(obs: Any, rng: np.random.Generator, *, at_random: bool) -> int:
    if at_random or rng.random() < 0.4:
        return int(rng.integers(2))
    return int(obs[2] + 0.3 * obs[3] > 0.0)


_EPISODES = {"scripted": 200, "random": 1_000}
_SCRIPTS: Mapping[str, Callable[..., Any]] = {"Pendulum-v1": _swing_up, "CartPole-v1": _balance}
