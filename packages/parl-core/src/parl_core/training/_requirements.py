"""Checks of an agent by a loop: before it begins, so that a wrong choice is not a late error, and of its target.

Only `parl.Agent` around an algorithm is checked; an agent with its own `learn`, `sample` or `predict` is
trusted, unless the loop would not call it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import create_empty_array
from numpy.typing import NDArray

from parl_core import logger
from parl_core._nested import GOAL_KEYS, rows_of
from parl_core.agent import Agent
from parl_core.algorithm import Algorithm
from parl_core.checks import for_team_of
from parl_core.contracts._base import OnPolicy
from parl_core.errors import DatasetError, HyperparameterError, ModelContractError, ParlError
from parl_core.model import Model
from parl_core.offline import OfflineDataset
from parl_core.spaces import has_goals, require_one_agent, require_several_agents
from parl_core.training.acting import Acting, tell_dimensions

__all__ = [
    "RewardWatch",
    "TargetWatch",
    "UpdateWatch",
    "check_outputs",
    "refuse_uncarried_state",
    "require_agents",
    "require_goals",
    "require_kinds",
    "require_log",
    "require_off_policy",
    "require_offline",
    "require_on_policy",
    "require_rates",
    "try_out",
    "warn_of_missing_bounds",
]


_TRANSITION = ("obs", "action", "reward", "next_obs", "terminal")
_OF_EACH_ROW = ("weights", "discount", "action_mask", "next_action_mask", "mask")
_OF_THE_LOOP = ("batch", "epochs", "minibatch_size", "rng")
_LOOPS = (
    "DQN, DDPG, TD3, SAC, OAC, TQC, REDQ, DroQ, CrossQ, QMIX, VDN and MADDPG learn with train_off_policy; PPO, A2C, "
    "PolicyGradient, MAPPO, IPPO and COMA with train_on_policy; CQL, IQL, AWAC, TD3BC, ReBRAC, OfflineQ and "
    "DecisionTransformer with train_offline; IMPALA with train_actor_learner; ApeX with train_apex"
)


def require_kinds(loop: str, agent: object, settings: object = None, kind: type[Any] | None = None) -> None:
    """Reject objects that are not agents, and the settings of another loop.

    Raises:
        HyperparameterError: The message names the given and the required type.
    """
    if isinstance(agent, (type, Algorithm, Model)):
        given = agent.__name__ if isinstance(agent, type) else type(agent).__name__
        raise HyperparameterError(
            f"{loop} needs an agent, got {'the class ' if isinstance(agent, type) else ''}{given}: make one, for "
            "instance parl.Agent(parl.algorithms.DQN(model))"
        )
    if kind is not None and not isinstance(settings, kind):
        given = settings.__name__ if isinstance(settings, type) else type(settings).__name__
        raise HyperparameterError(f"{loop} needs settings made by training.{kind.__name__}(...), got {given}")


def require_on_policy(agent: object) -> None:
    """Reject an agent whose algorithm does not learn from whole rollouts, and methods that would not be called.

    Raises:
        HyperparameterError: It names the algorithm, and which loop suits it; or the method, and which one is called.
    """
    if not isinstance(agent, Agent):
        return
    _refuse_unused(type(agent), {"learn": "learn_rollout", "sample": "explore"})
    if type(agent).learn_rollout is not Agent.learn_rollout:
        return
    if not isinstance(agent.alg, OnPolicy):
        raise _unsuited("train_on_policy", agent.alg, "does not learn from rollouts of its own policy")
    if agent.alg.NO_ROLLOUTS:
        raise HyperparameterError(f"train_on_policy cannot train {agent.alg.NO_ROLLOUTS}")
    if not _is_own(type(agent.alg), "learn_rollout"):
        _refuse_unused(type(agent.alg), agent.alg.REPLACED_IN_LOOPS)


def _refuse_unused(kind: type[Any], replaced: Mapping[str, str]) -> None:
    for name, called in replaced.items():
        if _is_own(kind, name) and not _is_own(kind, called):
            raise HyperparameterError(
                f"train_on_policy calls {called}, so that {kind.__name__}.{name} would not run: override {called}, or "
                f"for another loss `loss` of the algorithm; or call {name} in a loop of your own"
            )


def _is_own(kind: type[Any], name: str) -> bool:
    """Return whether a method of a class is the program's, not of one of our packages."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), object)
    return not owner.__module__.startswith(("parl_core.", "parl_torch.", "parl_paddle.")) and owner is not object


def require_off_policy(agent: object, exploration: Iterable[str] = (), rates: Iterable[str] = ()) -> None:
    """Reject an agent whose algorithm does not learn from replayed transitions, and settings that it does not have.

    Args:
        agent: The agent of the loop.
        exploration: Names of options of its `sample`.
        rates: Names of learning rates of its `learn`.

    Raises:
        HyperparameterError: The message names the algorithm and a suitable loop, or the settings and the known ones.
    """
    if not isinstance(agent, Agent):
        return
    if type(agent).learn is Agent.learn:
        is_team = agent.alg.TEAM is not None and not isinstance(agent.alg, OnPolicy)
        if not is_team and not _takes(agent.alg, *_TRANSITION, weights=None, discount=None):
            raise _unsuited("train_off_policy", agent.alg, "does not learn from transitions of a replay memory")
        known = _parameters(agent.alg.learn)
        columns = getattr(type(agent.alg).learn, "columns", None)
        first = len(_TRANSITION) if columns is None else len(columns.names)
        own = None if known is None else [name for name in known[first:] if name not in _OF_EACH_ROW]
        _require_known("rates", rates, agent.alg, own)
    if type(agent).sample is Agent.sample:
        _require_known("exploration", exploration, agent.alg, _explored(agent.alg))


def require_rates(agent: object, rates: Iterable[str]) -> None:
    """Reject rates that an algorithm does not have when it learns from fragments of actors.

    Args:
        agent: The agent of the loop.
        rates: Names of arguments of its `learn` (IMPALA) or `learn_rollout`.

    Raises:
        HyperparameterError: There are unknown rates; the message names them and the known ones.
    """
    if not isinstance(agent, Agent):
        return
    method = "learn_rollout" if isinstance(agent.alg, OnPolicy) else "learn"
    if getattr(type(agent), method) is not getattr(Agent, method):
        return
    columns = getattr(getattr(type(agent.alg), method), "columns", None)
    known = _parameters(getattr(agent.alg, method)) if columns is None else columns.settings
    _require_known("rates", rates, agent.alg, known and [name for name in known if name not in _OF_THE_LOOP])


def require_offline(agent: object) -> None:
    """Reject an agent whose algorithm does not learn from logged data.

    Raises:
        HyperparameterError: It names the algorithm, and which loop suits it.
    """
    if not isinstance(agent, Agent) or type(agent).learn is not Agent.learn or hasattr(agent.alg, "draw_batch"):
        return
    if not _takes(agent.alg, **dict.fromkeys(_TRANSITION)):
        raise _unsuited("train_offline", agent.alg, "does not learn from logged transitions")


def require_log(agent: object, dataset: OfflineDataset, batch_size: int) -> None:
    """Reject logged data with a row that the agent's algorithm cannot learn from; all rows are checked.

    Args:
        agent: The agent; one with its own `learn` is not checked.
        dataset: The dataset to learn from.
        batch_size: Rows of a batch, the minimum number of rows of the data.

    Raises:
        HyperparameterError: The batch is larger than the dataset.
        DatasetError: An action does not fit the algorithm; the message describes the data.
    """
    if len(dataset) < batch_size:
        raise HyperparameterError(
            f"{dataset.source} has {len(dataset)} transitions, batch_size is {batch_size}: record more, or use a "
            "smaller batch"
        )
    if not isinstance(agent, Agent) or not agent.takes_batches or agent._columns is None:
        return
    whole = getattr(agent.alg, "whole_log", None)
    if whole is None and hasattr(agent.alg, "draw_batch"):  # a user's algorithm with its own batches
        return
    try:
        agent.alg.check_batch(agent._columns.kind.made(**(dataset.whole() if whole is None else whole(dataset))))
    except ParlError:
        raise
    except ValueError as error:
        raise DatasetError(f"{dataset.source}: {error}") from error


def require_agents(agent: Any, space: Any, *, learns: bool = True) -> int | None:
    """Return the number of agents of a multi-agent algorithm, after a trial call; None for other algorithms.

    Args:
        agent: The agent; one with its own `explore` or `predict` is not called.
        space: The space of an observation.
        learns: Whether the agent is to learn; otherwise it only acts, by `predict`.

    Raises:
        HyperparameterError: An algorithm for several agents is to act for one, or one for one agent to learn from
            several that choose, or it was made for another number of agents or actions.
        ModelContractError: Its model does not act on joint observations.
    """
    algorithm: Any = getattr(agent, "alg", None)
    name, kind = type(algorithm).__name__, getattr(algorithm, "TEAM", None)
    if kind is None:
        if isinstance(agent, Agent) and learns:
            require_one_agent(name, space)
        return None
    require_several_agents(name, space)
    agents = int(space["alive"].shape[0])
    acting = "explore" if learns and isinstance(algorithm, OnPolicy) else "predict"
    if not isinstance(agent, Agent) or getattr(type(agent), acting) is not getattr(Agent, acting):
        return agents
    sizes = {"n_agents": agents}
    if "action_mask" in space.spaces:
        sizes["n_actions"] = int(space["action_mask"].shape[1])
    for size, found in sizes.items():
        made_for = getattr(getattr(algorithm, "qmixer_model", algorithm), size, None)
        if made_for not in (None, found):
            what = size.removeprefix("n_")
            raise HyperparameterError(
                f"{name} was made for {made_for} {what}, and these environments have {found}: make it with "
                f"{size}={found}"
            )
    obs: Any = create_empty_array(space, n=2, fn=np.ones)  # ones: every choice is possible
    tell_dimensions(agent, space)
    model = type(getattr(algorithm, "agent_model", algorithm.model)).__name__
    wrong = (
        f"{model} of {name} does not act on joint observations of {agents} agents: make a model by {for_team_of(kind)}"
    )
    try:
        with agent.drawing_from(0):
            acted = getattr(Acting(agent, 2), acting)(obs)
    except Exception as error:
        raise ModelContractError(f"{wrong} ({error})") from error
    if acting == "explore" and {np.shape(part)[:2] for part in acted} != {(2, agents)}:
        raise ModelContractError(wrong)
    return agents


def require_goals(hindsight: object, space: Any) -> None:
    """Reject hindsight for observations without goals.

    Args:
        hindsight: The setting, for the message.
        space: The space of an observation.

    Raises:
        HyperparameterError: It has no goals.
    """
    if not has_goals(space):
        raise HyperparameterError(
            f"hindsight={hindsight} is for environments whose observations have the parts {', '.join(GOAL_KEYS)} "
            f"(Gymnasium's GoalEnv), got {space}: leave it out"
        )


def try_out(agent: object, obs: Any, space: Any, valid: Callable[[Any], Any]) -> None:
    """Make an agent that has not acted yet choose once, so that a misfit is found before the loop begins.

    An algorithm without a given number of actions, such as DQN, gets it here.

    Args:
        agent: The agent; one with its own `predict`, which may not take batches, is not checked.
        obs: `[n, ...]`, or a dictionary of arrays.
        space: The environment's action space.
        valid: The result of `into_space`.

    Raises:
        HyperparameterError: The agent's actions do not suit the environment's action space.
        ModelContractError: The model has another number of outputs than the space has actions.
    """
    if not isinstance(agent, Agent) or type(agent).predict is not Agent.predict:
        return
    if isinstance(space, gymnasium.spaces.Discrete) and getattr(agent.alg, "act_dim", 0) is None:
        agent.alg.act_dim = int(space.n)
    refuse_uncarried_state(agent, obs)
    action = Acting(agent, rows_of(obs)).predict(obs)
    valid(action)
    agent.alg.settle_shapes(obs, action)


def warn_of_missing_bounds(name: str, space: Any) -> None:
    """Warn where an algorithm that acts in [-1, 1] cannot reach all of an action space.

    Args:
        name: The name of the algorithm.
        space: The environment's action space; only continuous ones are checked.
    """
    flat = gymnasium.spaces.flatten_space(space)
    if isinstance(space, gymnasium.spaces.Discrete) or not isinstance(flat, gymnasium.spaces.Box):
        return
    missing = np.flatnonzero(~(np.isfinite(flat.low) & np.isfinite(flat.high)))
    if missing.size:
        logger.warning(
            "%s acts in [-1, 1], and %s has no two finite bounds in the numbers %s: they get no actions outside of "
            "[-1, 1]. Give the space bounds, for instance by gymnasium.wrappers.TransformAction",
            name,
            space,
            missing.tolist(),
        )


def check_outputs(agent: object, obs: Any, space: Any) -> None:
    """Reject a policy whose number of outputs differs from the number of choices.

    Args:
        agent: An agent that is not a `parl.Agent`, or has no model with a `policy`, is not checked.
        obs: `[n, ...]`, or a dictionary of arrays.
        space: The environment's action space; only of those with choices the number of outputs follows.

    Raises:
        ModelContractError: They differ (the message has both numbers), or the policy for continuous actions returns no
            Gaussians.
    """
    if not isinstance(agent, Agent):
        return
    model: Any = getattr(agent.alg, "model", None)
    refuse_uncarried_state(agent, obs)
    if isinstance(agent.alg, OnPolicy):
        agent.alg.check_policy(obs)
    if not hasattr(model, "implements") or not model.implements("policy"):
        return
    if isinstance(space, gymnasium.spaces.Discrete):
        wanted = int(space.n)
    elif isinstance(space, gymnasium.spaces.MultiDiscrete):
        wanted = int(space.nvec.sum())
    else:
        return
    batch = agent._batched(obs)[0]
    output: Any
    if agent.alg.remembers:
        output, _ = agent._forward(model.policy, batch, state=agent.initial_state(rows_of(batch)))
    else:
        output = agent._forward(model.policy, batch)
    if isinstance(output, np.ndarray) and output.ndim == 2 and output.shape[1] != wanted:
        raise ModelContractError(
            f"the environment has the actions {space}, {type(model).__name__}.policy gives {output.shape[1]} logits: "
            f"give it {wanted} outputs, one for each choice"
        )


def refuse_uncarried_state(agent: object, obs: Any) -> None:
    """Reject a recurrent model whose state the loops cannot carry from step to step.

    A recurrent layer that runs over several steps within one observation, such as stacked frames, keeps no state.

    Args:
        agent: An agent that is not a `parl.Agent`, or acts by methods of its own, is not checked.
        obs: `[n, ...]`, or a dictionary of arrays.

    Raises:
        HyperparameterError: There is one; the message names the layer and a remedy.
    """
    own = isinstance(agent, Agent) and type(agent).predict is Agent.predict and type(agent).sample is Agent.sample
    if not isinstance(agent, Agent) or not own or agent.alg.NEEDS_HISTORY or agent.alg.remembers:
        return
    layers = _recurrent_layers(getattr(agent.alg, "model", None))
    if not layers:
        return
    batch = agent._batched(obs)[0]
    steps = dict.fromkeys(layers, 0)

    def counted(name: str) -> Callable[..., None]:
        def count(layer: Any, inputs: Any) -> None:
            steps[name] += _steps_of(layer, inputs)

        return count

    hooks = [layer.register_forward_pre_hook(counted(name)) for name, layer in layers.items()]
    try:
        with agent.drawing_from(0):
            first = agent._forward(agent.alg.predict, batch)
    finally:
        for hook in hooks:
            hook.remove()
    with agent.drawing_from(0):
        second = agent._forward(agent.alg.predict, batch)
    short = [name for name, count in steps.items() if count == 1]
    if short or not _same(first, second):
        name = short[0] if short else next(iter(layers))
        raise HyperparameterError(
            f"{type(agent.alg.model).__name__}.{name} is recurrent ({type(layers[name]).__name__}), and no loop "
            "carries its state from step to step: it would train as if it had no memory, or with that of other "
            "episodes. Give the model the last steps in each observation "
            "(gymnasium.wrappers.FrameStackObservation) and run the layer over them, or let it define initial_state "
            "and remember, as docs/how-to/memory.md says, so that the loops carry its state"
        )


def _recurrent_layers(model: Any) -> dict[str, Any]:
    """Return the recurrent layers of a model by name, without cells that are parts of other layers."""
    named = model._all_layers() if hasattr(model, "_all_layers") else {}
    found: dict[str, Any] = {}
    for name, layer in named.items():
        kinds = {cls.__name__ for cls in type(layer).__mro__}
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if kinds & {"RNNBase", "RNNCellBase"} and not inside:
            found[name] = layer
    return found


def _steps_of(layer: Any, inputs: Any) -> int:
    """Return the number of steps over which a call of a recurrent layer runs."""
    if "RNNCellBase" in {cls.__name__ for cls in type(layer).__mro__}:
        return 1
    shape = tuple(inputs[0].shape)
    if len(shape) != 3:
        return 1  # rows of the batch as steps would mix environments
    by_batch = layer.batch_first if hasattr(layer, "batch_first") else not getattr(layer, "time_major", False)
    return int(shape[1] if by_batch else shape[0])


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, tuple):
        return all(map(_same, first, second))
    return not isinstance(first, np.ndarray) or np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


def _takes(algorithm: Algorithm, *args: Any, **kwargs: Any) -> bool:
    """Return whether the algorithm learns from such arguments."""
    try:
        inspect.signature(algorithm.learn).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _unsuited(loop: str, algorithm: Algorithm, reason: str) -> HyperparameterError:
    return HyperparameterError(f"{loop} cannot train {type(algorithm).__name__}, which {reason}: {_LOOPS}")


def _require_known(setting: str, given: Iterable[str], algorithm: Algorithm, known: Sequence[str] | None) -> None:
    unknown = [] if known is None else [name for name in given if name not in known]
    if unknown:
        there = ", ".join(known or ["none"])
        raise HyperparameterError(
            f"{type(algorithm).__name__} has no {', '.join(unknown)} for {setting}; it has {there}"
        )


def _explored(algorithm: Algorithm) -> Sequence[str] | None:
    """Return the names of the settings that `Agent.sample` takes for this algorithm; None if it takes any."""
    cls = type(algorithm)
    if cls.sample is not Algorithm.sample:
        known = _parameters(algorithm._taking_options())
        return None if known is None else known[1:]
    if cls.choose is Algorithm.choose:
        return []
    parameters = inspect.signature(algorithm.choose).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "rng"] or None


def _parameters(method: Callable[..., Any]) -> list[str] | None:
    """Return the names of the parameters; None if it takes any."""
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


class RewardWatch:
    """Warns once where the team's reward is not made of its agents' own, from which the algorithm learns.

    Args:
        agent: The agent of the loop; rewards are only checked if its algorithm learns from those of each
            agent.
    """

    def __init__(self, agent: Any) -> None:
        algorithm = getattr(agent, "alg", None)
        self._name = type(algorithm).__name__
        self._watches = bool(getattr(algorithm, "TEAM", None)) and not getattr(algorithm, "NEEDS_SEQUENCES", False)

    def compare(self, team: NDArray[Any], own: NDArray[Any], acted: NDArray[Any]) -> None:
        """Compare rewards of a team `[...]` with those of its agents that acted, both `[..., agents]`."""
        if not self._watches:
            return
        own, acted = np.asarray(own, np.float64), np.asarray(acted) != 0
        total, near = own.sum(-1), 1e-3 * np.abs(own).sum(-1)
        mean = total / np.maximum(acted.sum(-1), 1)
        strange = (np.abs(team - total) > near) & (np.abs(team - mean) > near)
        if strange.any():
            self._watches = False
            at = tuple(np.argwhere(strange)[0])
            logger.warning(
                "the team got the reward %g, and its agents %s: %s learns from those of each agent, which a wrapper "
                "around JointEnv does not change. Let it change the rewards of the environment inside JointEnv",
                team[at],
                own[at].tolist(),
                self._name,
            )


class UpdateWatch:
    """Warns once if a loop makes no updates.

    Args:
        memory: The memory of the loop.
        settings: The settings of the loop, whose `total_steps`, `learning_starts` and `train_every` determine the
            updates.
    """

    def __init__(self, memory: Any, settings: Any) -> None:
        self._memory, self._total, self._has_warned = memory, settings.total_steps, False
        if self._total < max(settings.learning_starts, settings.train_every):
            logger.warning(
                "nothing will be learned in total_steps=%d: updates begin after learning_starts=%d steps, one phase "
                "every train_every=%d",
                self._total,
                settings.learning_starts,
                settings.train_every,
            )

    def is_ready(self, step: int) -> bool:
        """Return whether the memory has something to draw after this many steps."""
        if getattr(self._memory, "is_ready", True):
            return True
        if not self._has_warned and (self._memory.size() == self._memory.max_size or step >= self._total):
            self._has_warned = True
            logger.warning(
                "nothing was learned in %d steps: the memory holds %d transitions, but no whole episode or sequence. "
                "Make memory_size larger, or let episodes end earlier",
                step,
                self._memory.size(),
            )
        return False


_PATIENCE = 1_000  # updates
_PATIENCE_WITH_SYNCS = 20_000  # papers copy the target every 10,000 updates at most


class TargetWatch:
    """Moves the target after each update if the algorithm leaves that to the loop, and warns once if it never moves.

    Args:
        agent: The agent of the loop; only an algorithm with a `target_model` that is a `parl.Model` is checked.
    """

    def __init__(self, agent: Any) -> None:
        algorithm = getattr(agent, "alg", None)
        is_watched = isinstance(algorithm, Algorithm) and all(
            isinstance(getattr(algorithm, name, None), Model) for name in ("model", "target_model")
        )
        self._algorithm: Any = algorithm if is_watched else None
        self._move: Any = getattr(algorithm, "move_target_in_loop", None)
        self._patience = _PATIENCE if self._move is None else _PATIENCE_WITH_SYNCS
        self._updates = 0
        self._before: Any = None
        if self._move is None:
            return
        sync_every = getattr(algorithm, "sync_every", 0)
        if sync_every is None:
            logger.warning(
                "%s was made with sync_every=None: its target stays as it is unless the program calls sync_target(); "
                "leave sync_every out, and the loop moves it after each update",
                type(algorithm).__name__,
            )
        if sync_every != "loop":  # otherwise the loop moves the target until the program calls sync_target()
            self._algorithm = None

    def after_update(self) -> None:
        """Move the target, unless the algorithm moves it itself."""
        if self._move is not None:
            self._move()
        if self._algorithm is not None and (self._move is None or self._algorithm.syncs > 0):
            self._watch()

    def _watch(self) -> None:
        if self._algorithm.target_model._waiting():  # to set shapes before the first pass
            return
        self._updates += 1
        if self._updates == 1:
            self._before = self._weights()
        elif self._updates == self._patience:
            model, target = self._weights()
            was_model, was_target = self._before
            if _equal(target, was_target) and not _equal(model, was_model):
                logger.warning(
                    "%s has a target_model that did not change in %d updates: %s",
                    type(self._algorithm).__name__,
                    self._patience,
                    "let its learn() move it, for instance by "
                    "self.model.sync_weights_to(self.target_model, decay=0.995), or call its sync_target()"
                    if self._move is None
                    else "the loop leaves it alone since the program called sync_target(); call that at intervals, or "
                    "pass sync_every= to the algorithm, or leave the call out, and the loop moves the target",
                )
            self._algorithm = self._before = None

    def _weights(self) -> tuple[Any, Any]:
        return self._algorithm.model.get_weights(), self._algorithm.target_model.get_weights()


def _equal(left: Any, right: Any) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)
