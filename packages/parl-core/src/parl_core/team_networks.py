"""Networks of several agents: rows of joint observations of `parl_core.env.joint.JointEnv` in, one result per agent.

    PerAgent, PerAgentMemory    layers of each group of agents: `[batch, agents, in]` -> `[batch, agents, out]`
    TeamQNetwork                joint observations -> each agent's action values                  QMIX, VDN
    RecurrentTeamQNetwork       joint observations, state -> the same, and the state              QMIX, VDN
    QMixer, VDNMixer            the chosen values of all agents, and the global state -> the team's value
    TeamActorCritic             joint observations -> each agent's action; critics that get all   MADDPG
    CentralActorCritic          joint observations -> each agent's policy and value               MAPPO, IPPO
    RecurrentCentralActorCritic the same with a memory of each agent for both                     MAPPO, IPPO
    CounterfactualActorCritic   joint observations -> policies; Q of each given others' actions   COMA
    RecurrentCounterfactualActorCritic  the same, policies with a memory                           COMA

`groups` selects the agents that share their weights:

    "shared"         all of them; each also observes its one-hot number (agents that differ need it)
    "independent"    none
    (0, 0, 1)        one number per agent: agents with equal numbers share weights, with one-hot numbers as inputs
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import backends
from parl_core._encoders import Layer
from parl_core.checks import check_int
from parl_core.errors import HyperparameterError
from parl_core.networks import Body, _Network, _Policy
from parl_core.recurrent import State, _steps_of, zeros_of
from parl_core.spaces import dimensions_of, kind_of, require_several_agents, unit_scale

__all__ = [
    "CentralActorCritic",
    "CounterfactualActorCritic",
    "Groups",
    "PerAgent",
    "PerAgentMemory",
    "QMixer",
    "RecurrentCentralActorCritic",
    "RecurrentCounterfactualActorCritic",
    "RecurrentTeamQNetwork",
    "TeamActorCritic",
    "TeamQNetwork",
    "VDNMixer",
    "for_team",
    "groups_of",
]

Groups = Literal["shared", "independent"] | Sequence[int]
"""The groups of agents that share their weights: see above."""

TeamMemory = Literal["gru", "lstm"]


def groups_of(groups: Any, agents: int) -> tuple[int, ...]:
    """Return the number of the group of each agent.

    Raises:
        HyperparameterError: The choice is unknown, or the numbers of groups are not one per agent, counted from 0.
    """
    if groups == "shared":
        return (0,) * agents
    if groups == "independent":
        return tuple(range(agents))
    given = () if isinstance(groups, str) or not isinstance(groups, Iterable) else tuple(groups)
    numbers = [int(number) for number in given if isinstance(number, (int, np.integer))]
    if not len(numbers) == len(given) == agents or set(numbers) != set(range(max(numbers, default=-1) + 1)):
        raise HyperparameterError(
            f'groups must be "shared", "independent", or the number of the group of each of {agents} agents, counted '
            f"from 0 without gaps, got {groups!r}"
        )
    return tuple(numbers)


class PerAgent(Layer):
    """A layer for each group of agents, applied to the group's rows.

    Args:
        groups: The number of the group of each agent, counted from 0, such as `(0, 0, 1)`.
        make: The function that makes the layer of a group, which takes and returns rows `[n, features]`.
        ids: True if agents that share a layer get their one-hot numbers in addition to the features.

    Raises:
        HyperparameterError: `groups` are not such numbers.
    """

    _layer_list: ClassVar[Callable[..., Any]]
    _constant: Callable[..., Any]
    """Backend hook: a tensor of an array, of the dtype and on the device of another tensor."""

    def __init__(self, groups: Sequence[int], make: Callable[[], Any], *, ids: bool = True) -> None:
        super().__init__()
        if not isinstance(groups, (tuple, list)) or not groups:
            raise HyperparameterError(
                f"a layer of several agents needs the number of the group of each, such as (0, 0, 1), got {groups!r}: "
                "of three agents, (0, 0, 0) share it, and (0, 1, 2) do not"
            )
        self._agents = len(groups)
        members: dict[int, tuple[int, ...]] = {}
        for agent, group in enumerate(groups_of(groups, self._agents)):
            members[group] = (*members.get(group, ()), agent)
        self._groups = tuple(members[group] for group in sorted(members))
        self._ids = ids
        self.parts = self._layer_list([make() for _ in self._groups])

    def forward(self, *sides: Any) -> Any:
        """Return the outputs `[batch, agents, out]`.

        Args:
            sides: Features to concatenate: first `[batch, agents, in]`, then more of these, or `[batch, in]` of
                features that are the same for all agents.
        """
        if len(self._groups) == 1:
            found = self._of_shared(sides)
            if found is not None:
                return found
        features = self._side_by_side(sides)
        if len(self._groups) == self._agents:
            return self.of_each(self._layers.transpose(features, [1, 0, 2]))
        results = []
        for group, part in zip(self._groups, self.parts, strict=True):
            rows = self._of_group(features, group)
            found = part(self._layers.reshape(rows, [-1, rows.shape[-1]]))
            results.append(self._layers.reshape(found, [-1, len(group), found.shape[-1]]))
        return self._in_order(results)

    def of_agent(self, agent: int, rows: Any) -> Any:
        """Return the outputs `[batch, out]` of one agent's layer for rows `[batch, in]` of that agent alone."""
        for group, part in zip(self._groups, self.parts, strict=True):
            if agent in group:
                if self._ids and len(group) > 1:
                    ids = self._constant(np.eye(self._agents, dtype=np.float32)[None, agent], rows)
                    rows = self._layers.concat([rows, rows[:, :1] * 0.0 + ids], axis=-1)
                return part(rows)
        raise HyperparameterError(f"there is no agent {agent}; agents are 0..{self._agents - 1}")

    def of_each(self, rows: Any) -> Any:
        """Return the outputs `[batch, agents, out]` of each agent's layer.

        Args:
            rows: The agents' own rows `[agents, batch, in]`, or `[batch, in]` that all get.
        """
        found = self._at_once(rows) if len(self._groups) == self._agents else None
        if found is not None:
            return self._layers.transpose(found, [1, 0, 2])
        own = rows if len(rows.shape) == 3 else [rows] * self._agents
        return self._layers.stack([self.of_agent(agent, own[agent]) for agent in range(self._agents)], axis=1)

    def _of_shared(self, sides: Sequence[Any]) -> Any:  # noqa: ARG002 - of backends that can
        """Backend hook: return the outputs of a layer that all agents share; None for the usual computation."""
        return None

    def _side_by_side(self, sides: Sequence[Any]) -> Any:
        if len(sides) == 1:
            return sides[0]
        stack = self._layers.stack
        of_each = [side if len(side.shape) == 3 else stack([side] * self._agents, axis=1) for side in sides]
        return self._layers.concat(of_each, axis=-1)

    def _at_once(self, rows: Any) -> Any:  # noqa: ARG002 - of backends that can
        """Backend hook: return outputs `[agents, batch, out]` of all layers for `rows`; None if they differ."""
        return None

    def _of_group(self, features: Any, group: tuple[int, ...], *, ids: bool = True) -> Any:
        """Return the rows `[batch, len(group), ...]` of a group, with their numbers where they share a layer."""
        rows = features
        if len(group) != self._agents:
            rows = self._layers.stack([features[:, agent] for agent in group], axis=1)
        if ids and self._ids and len(group) > 1:
            numbers = self._constant(np.eye(self._agents, dtype=np.float32)[None, list(group)], rows)
            rows = self._layers.concat([rows, rows[:, :, :1] * 0.0 + numbers], axis=-1)
        return rows

    def _in_order(self, results: list[Any]) -> Any:
        """Return the results of all groups in the order of the agents, `[batch, agents, ...]`."""
        if len(results) == 1:
            return results[0]
        columns: dict[int, Any] = {}
        for group, found in zip(self._groups, results, strict=True):
            columns |= {agent: found[:, place] for place, agent in enumerate(group)}
        return self._layers.stack([columns[agent] for agent in range(self._agents)], axis=1)


class PerAgentMemory(PerAgent):
    """A layer with a memory (`parl_core.recurrent`) for each group of agents.

    The state has one more axis than that of a layer: `[rows, agents, ...]` by name.
    """

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array of the state, of one environment."""
        return {name: (self._agents, *shape) for name, shape in self.parts[0].shapes.items()}

    def remember(self, features: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return outputs `[rows * T, agents, out]`, and the state after the last step.

        Args:
            features: `[rows * T, agents, in]`, one sequence's steps after another's.
            state: The state before the first step of each sequence, `[rows, agents, ...]` by name.
            begins: bool `[rows * T]`, true where a step is the first of its episode; None if no step is.
        """
        reshape, transpose, stack = self._layers.reshape, self._layers.transpose, self._layers.stack
        count = next(iter(state.values())).shape[0]
        results, after = [], []
        for group, part in zip(self._groups, self.parts, strict=True):
            size = len(group)
            rows = self._of_group(features, group)
            by_step = reshape(rows, [*_steps_of(count), size, rows.shape[-1]])
            steps = by_step.shape[1]
            # Behind a transposition of single steps, Paddle Inference 3.3 takes the rows of all agents for one.
            by_agent = transpose(by_step, [0, 2, 1, 3]) if steps > 1 else rows
            before = {name: self._of_group(array, group, ids=False) for name, array in state.items()}
            before = {name: reshape(array, [-1, *array.shape[2:]]) for name, array in before.items()}
            began = None
            if begins is not None:
                whole = reshape(self._layers.cast(begins, "int32"), [count, steps])
                began = reshape(stack([whole] * size, axis=1), [-1])
            found, last = part(reshape(by_agent, [-1, by_agent.shape[-1]]), before, began)
            found = transpose(reshape(found, [count, size, steps, found.shape[-1]]), [0, 2, 1, 3])
            results.append(reshape(found, [-1, size, found.shape[-1]]))
            after.append({name: reshape(array, [count, size, *array.shape[1:]]) for name, array in last.items()})
        return self._in_order(results), {name: self._in_order([one[name] for one in after]) for name in state}


class _TeamNetwork(_Network):
    """The base of all networks of teams; `_per_agent` and `_per_agent_memory` are the backend's."""

    _per_agent: Any
    _per_agent_memory: Any

    obs_ndim: Any = None
    _obs_scale: tuple[Any, Any] | None = None
    """Shift and scale of observations, from `for_team`: numbers, or `[1, agents, numbers]`; None to keep features."""

    def _seen(self, obs: Any) -> Any:
        """Return the inputs of the agents of a joint observation, as vectors `[batch, agents, numbers]`."""
        rows = self._parts.layers.cast(obs["obs"] if isinstance(obs, Mapping) else obs, "float32")
        if len(rows.shape) != 3:
            rows = self._parts.layers.reshape(rows, [-1, rows.shape[1], prod(rows.shape[2:])])
        if self._obs_scale is None:
            return rows
        low, span = (
            part if isinstance(part, float) else self._per_agent._constant(part, rows) for part in self._obs_scale
        )
        return (rows - low) / span

    def _state(self, obs: Any) -> Any:
        """Return the global state of a joint observation, `[batch, numbers]`."""
        return self._parts.layers.cast(obs["state"], "float32")

    def _mlp_of(self, hidden: Sequence[int], out: int, act: str = "relu") -> Callable[[], Any]:
        """Return a function that makes hidden layers and a last one of `out` outputs."""
        layers = self._parts.layers

        def make() -> Any:
            last = layers.fc(out)
            return self._parts.sequential(self._trunk(Body(hidden, act)), last) if hidden else last

        return make

    def _memory_of(self, groups: Any, memory: TeamMemory, size: int, *act: str) -> Any:
        """Return a memory of each group of agents, behind a layer of `size` units with the activation `act`.

        Raises:
            HyperparameterError: The memory is unknown.
        """
        if memory not in ("gru", "lstm"):
            raise HyperparameterError(f'memory must be "gru" or "lstm", got {memory!r}')
        return self._per_agent_memory(groups, lambda: self._parts.memories[memory](size, *act))


class TeamQNetwork(_TeamNetwork):
    """Each agent's action values `[batch, agents, act_dim]` of joint observations.

    Args:
        agents: Number of agents.
        act_dim: Largest number of actions of an agent.
        hidden: Sizes of the hidden layers (ReLU).
        groups: The groups of agents that share their weights.
    """

    def __init__(
        self, agents: int, act_dim: int, hidden: Sequence[int] = (64, 64), *, groups: Groups = "shared"
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        make = self._mlp_of(hidden, act_dim)
        self.values = self._per_agent(groups_of(groups, check_int("agents", agents)), make)

    def value(self, obs: Any) -> Any:
        """Return the action values `[batch, agents, act_dim]`."""
        return self.values(self._seen(obs))


class _PerAgentState:
    """The state of a network whose agents have one memory each, `memory`."""

    memory: Any  # the backend's `PerAgentMemory`

    def initial_state(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """Return the state before the first step of an episode: zeros by name, `[rows, agents, ...]`."""
        return zeros_of(self.memory.shapes(), rows)


class RecurrentTeamQNetwork(_PerAgentState, _TeamNetwork):
    """Each agent's action values over a memory of its own observations.

    Args:
        agents: Number of agents.
        act_dim: Largest number of actions of an agent.
        memory: "gru" or "lstm".
        memory_size: Units of the memory, and of the layer in front of it.
        groups: The groups of agents that share their weights.
    """

    def __init__(
        self,
        agents: int,
        act_dim: int,
        memory: TeamMemory = "gru",
        memory_size: int = 64,
        *,
        groups: Groups = "shared",
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        made = groups_of(groups, check_int("agents", agents))
        self.memory = self._memory_of(made, memory, memory_size, "relu")
        self.values = self._per_agent(made, self._mlp_of((), act_dim), ids=False)

    def remember(self, obs: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return joint observations with features instead of the agents' own, and the state after the last step.

        Args:
            obs: Joint observations `[rows * T, ...]`.
            state: The state before the first step of each sequence, `[rows, agents, ...]` by name.
            begins: As in `parl_core.recurrent`.
        """
        features, after = self.memory.remember(self._seen(obs), state, begins)
        return ({**obs, "obs": features} if isinstance(obs, Mapping) else features), after

    def value(self, features: Any) -> Any:
        """Return the action values of the features that `remember` returns."""
        return self.values(features["obs"] if isinstance(features, Mapping) else features)


class QMixer(_TeamNetwork):
    """The mixing network of QMIX (Rashid et al. 2018, section 4.2): a value that increases with every agent's value.

    Two layers, whose weights are the absolute values of functions of the global state.

    Args:
        agents: Number of agents.
        embed: Units of the mixing layer; 32 in the paper.
        hypernet: Units of a hidden layer of the networks that compute its weights; 0, as in the paper, for none.

    Attributes:
        n_agents: Number of agents.
    """

    def __init__(self, agents: int, embed: int = 32, hypernet: int = 0) -> None:
        super().__init__()
        self.n_agents, self._embed = check_int("agents", agents), check_int("embed", embed)
        hidden = (hypernet,) if check_int("hypernet", hypernet, at_least=0) else ()
        self.first_weights = self._mlp_of(hidden, agents * embed)()
        self.first_bias = self._mlp_of((), embed)()
        self.second_weights = self._mlp_of(hidden, embed)()
        self.second_bias = self._mlp_of((embed,), 1)()

    def forward(self, values: Any, state: Any) -> Any:
        """Return the team's values `[batch, T, 1]`.

        Args:
            values: The values of the agents' actions, `[batch, T, agents]`.
            state: `[batch, T, state_dim]`.
        """
        layers = self._parts.layers
        batch, steps = values.shape[0], values.shape[1]
        s = layers.reshape(layers.cast(state, "float32"), [-1, state.shape[-1]])
        q = layers.reshape(values, [-1, self.n_agents, 1])
        w1 = layers.reshape(layers.abs(self.first_weights(s)), [-1, self.n_agents, self._embed])
        x = layers.reduce_sum(q * w1, dim=1) + self.first_bias(s)
        hidden = layers.relu(x) + layers.exp(-layers.relu(-x)) - 1.0  # ELU
        w2 = layers.abs(self.second_weights(s))
        total = layers.reduce_sum(hidden * w2, dim=1, keep_dim=True) + self.second_bias(s)
        return layers.reshape(total, [batch, steps, 1])


class VDNMixer(_TeamNetwork):
    """The sum of all agents' values (Sunehag et al. 2017, arXiv:1706.05296, equation 3).

    Args:
        agents: Number of agents; the sum does not depend on it.

    Attributes:
        n_agents: Number of agents.
    """

    def __init__(self, agents: int | None = None) -> None:
        super().__init__()
        self.n_agents = None if agents is None else check_int("agents", agents)

    def forward(self, values: Any, state: Any) -> Any:  # noqa: ARG002 - as of `QMixer`
        """Return the team's values `[batch, T, 1]` of `values` `[batch, T, agents]`."""
        return self._parts.layers.reduce_sum(values, dim=2, keep_dim=True)


class TeamActorCritic(_TeamNetwork):
    """Each agent's policy of its own observation, and its critic of all observations and actions.

    Args:
        agents: Number of agents.
        act_dim: Largest number of actions, or of an action's numbers, of an agent.
        hidden: Sizes of the hidden layers (ReLU) of policies and critics.
        continuous: Whether actions are numbers in [-1, 1], else logits of choices.
        groups: The groups of agents that share their weights.
        used: bool `[agents, act_dim]`, False where a number of an agent's action is padding: policies return 0 there,
            and critics do not receive it. Default: all are used.
    """

    def __init__(
        self,
        agents: int,
        act_dim: int,
        hidden: Sequence[int] = (64, 64),
        *,
        continuous: bool = False,
        groups: Groups = "independent",
        used: Any = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        made = groups_of(groups, check_int("agents", agents))
        self._continuous = bool(continuous)
        self._used = None if used is None or np.all(used) else np.asarray(used, np.float32)[None]
        self.actor = self._per_agent(made, self._mlp_of(hidden, act_dim))
        self.critic = self._per_agent(made, self._mlp_of(hidden, 1))

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, agents, act_dim]`, or actions in [-1, 1]."""
        output = self.actor(self._seen(obs))
        return self._without_padding(self._parts.layers.tanh(output)) if self._continuous else output

    def value(self, obs: Any, action: Any, agent: int) -> Any:
        """Return one agent's values `[batch, 1]` of joint observations and actions `[batch, agents, act_dim]`."""
        layers, seen = self._parts.layers, self._seen(obs)
        rows = [layers.reshape(part, [part.shape[0], -1]) for part in (seen, self._without_padding(action))]
        return self.critic.of_agent(agent, layers.concat(rows, axis=-1))

    def values(self, obs: Any, action: Any) -> Any:
        """Return the values of all agents, `[batch, agents]`, equal to those of `value`.

        Args:
            obs: Joint observations.
            action: `[batch, agents, act_dim]`; or one for each critic, `[agents, batch, agents, act_dim]`.
        """
        layers, seen = self._parts.layers, self._seen(obs)
        agents, batch, action = seen.shape[1], seen.shape[0], self._without_padding(action)
        flat = layers.reshape(seen, [batch, -1])
        if len(action.shape) == 3:
            rows = layers.concat([flat, layers.reshape(action, [batch, -1])], axis=-1)
        else:
            flat = layers.stack([flat] * agents, axis=0)
            rows = layers.concat([flat, layers.reshape(action, [agents, batch, -1])], axis=-1)
        return layers.reshape(self.critic.of_each(rows), [batch, agents])

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of all policies."""
        return list(self.actor.parameters())

    def get_critic_params(self) -> list[Any]:
        """Return the parameters of all critics."""
        return list(self.critic.parameters())

    def _without_padding(self, action: Any) -> Any:
        return action if self._used is None else action * self.actor._constant(self._used, action)


class CentralActorCritic(_TeamNetwork, _Policy):
    """Each agent's policy of its own observation, and its value of the observation and the global state.

    Args:
        agents: Number of agents.
        act_dim: Largest number of actions, or of an action's numbers, of an agent.
        hidden: Sizes of the hidden layers (tanh, orthogonal) of policies and critics.
        continuous: Whether policies are Gaussians, with standard deviations that all agents share, 1 at the start.
        groups: The groups of agents that share their weights.
        central: Whether critics get the global state; if not, each gets only its agent's observations.
    """

    def __init__(
        self,
        agents: int,
        act_dim: int,
        hidden: Sequence[int] = (64, 64),
        *,
        continuous: bool = False,
        groups: Groups = "shared",
        central: bool = True,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        made = groups_of(groups, check_int("agents", agents))
        self._agents, self._central = agents, bool(central)
        self.policy_trunk = self._per_agent(made, lambda: self._trunk(Body(hidden, "tanh", orthogonal=True)))
        self.policy_head = self._per_agent(made, lambda: self._orthogonal(act_dim, 0.01), ids=False)
        self.value_trunk = self._per_agent(made, lambda: self._trunk(Body(hidden, "tanh", orthogonal=True)))
        self.value_head = self._per_agent(made, lambda: self._orthogonal(1, 1.0), ids=False)
        self._set_std(act_dim, continuous, None)

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, agents, act_dim]`, or (mean of that shape, standard deviation `[act_dim]`)."""
        return self._distributed(self.policy_head(self.policy_trunk(self._seen(obs))))

    def value(self, obs: Any) -> Any:
        """Return the values `[batch, agents, 1]`."""
        return self.value_head(self.value_trunk(*self._seen_by_critics(obs)))

    def _seen_by_critics(self, obs: Any) -> tuple[Any, ...]:
        """Return the inputs of the critics, for `PerAgent` to concatenate."""
        return (self._seen(obs), self._state(obs)) if self._central else (self._seen(obs),)


class RecurrentCentralActorCritic(CentralActorCritic):
    """`CentralActorCritic` with two memories per agent: one of its observations, one of its critic's inputs.

    Args:
        agents: Number of agents.
        act_dim: As in `CentralActorCritic`, like the other arguments.
        memory: "gru" or "lstm".
        memory_size: Units of each memory, and of the layer in front of it.
        continuous: Whether policies are Gaussians.
        groups: The groups of agents that share their weights.
        central: Whether critics get the global state.
    """

    def __init__(
        self,
        agents: int,
        act_dim: int,
        memory: TeamMemory = "gru",
        memory_size: int = 64,
        *,
        continuous: bool = False,
        groups: Groups = "shared",
        central: bool = True,
    ) -> None:
        super().__init__(agents, act_dim, (memory_size,), continuous=continuous, groups=groups, central=central)
        made = groups_of(groups, agents)
        self.policy_trunk = self._memory_of(made, memory, memory_size)
        self.value_trunk = self._memory_of(made, memory, memory_size)

    def initial_state(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """Return the state before the first step of an episode: zeros by name, `[rows, agents, ...]`."""
        shapes = {
            f"{of}_{name}": shape
            for of, memory in (("policy", self.policy_trunk), ("value", self.value_trunk))
            for name, shape in memory.shapes().items()
        }
        return zeros_of(shapes, rows)

    def value_names(self) -> dict[str, str]:
        """Return the names in the state of the arrays of the critics' memories, by their names there."""
        return {name: f"value_{name}" for name in self.value_trunk.shapes()}

    def remember(self, obs: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return features of policies and critics, with the mask of joint observations, and the state afterwards.

        Args:
            obs: Joint observations `[rows * T, ...]`.
            state: The state before the first step of each sequence, `[rows, agents, ...]` by name. Without the arrays
                of the critics, the features are for the policies alone.
            begins: As in `parl_core.recurrent`.
        """
        features: dict[str, Any] = {}
        after: dict[str, Any] = {}
        for of, memory in (("policy", self.policy_trunk), ("value", self.value_trunk)):
            own = {name.removeprefix(f"{of}_"): part for name, part in state.items() if name.startswith(f"{of}_")}
            if not own:
                continue
            seen = self._seen(obs) if of == "policy" else memory._side_by_side(self._seen_by_critics(obs))
            features[of], last = memory.remember(seen, own, begins)
            after |= {f"{of}_{name}": part for name, part in last.items()}
        return {**features, **({"action_mask": obs["action_mask"]} if "action_mask" in obs else {})}, after

    def policy(self, features: Any) -> Any:
        """Return logits or Gaussians of the features that `remember` returns."""
        return self._distributed(self.policy_head(features["policy"]))

    def value(self, features: Any) -> Any:
        """Return the values `[batch, agents, 1]` of the features that `remember` returns."""
        return self.value_head(features["value"])


class CounterfactualActorCritic(_TeamNetwork):
    """Each agent's policy of its own observation, and the values of its actions given those of the others.

    Args:
        agents: Number of agents.
        act_dim: Largest number of actions of an agent.
        hidden: Sizes of the hidden layers (ReLU) of policies and critics.
        groups: The groups of agents that share their weights.
    """

    def __init__(
        self, agents: int, act_dim: int, hidden: Sequence[int] = (64, 64), *, groups: Groups = "shared"
    ) -> None:
        super().__init__()
        made = groups_of(groups, check_int("agents", agents))
        self._agents = agents
        self.actor = self._per_agent(made, self._mlp_of(hidden, check_int("act_dim", act_dim)))
        self.critic = self._per_agent(made, self._mlp_of(hidden, act_dim))
        blocks = np.kron(np.eye(agents, dtype=np.float32), np.ones((1, act_dim), np.float32))
        self._of_others = 1.0 - blocks[None]  # [1, agents, agents * act_dim]

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, agents, act_dim]`."""
        return self.actor(self._seen(obs))

    def values(self, obs: Any, action: Any) -> Any:
        """Return the values of each agent's actions, `[batch, agents, act_dim]`, while the others do theirs.

        Args:
            obs: Joint observations.
            action: One-hot `[batch, agents, act_dim]`.
        """
        layers = self._parts.layers
        joint = layers.reshape(action, [action.shape[0], -1])
        others = layers.stack([joint] * self._agents, axis=1) * self._per_agent._constant(self._of_others, joint)
        return self.critic(self._seen(obs), self._state(obs), others)

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of all policies."""
        return list(self.actor.parameters())

    def get_critic_params(self) -> list[Any]:
        """Return the parameters of all critics."""
        return list(self.critic.parameters())


class RecurrentCounterfactualActorCritic(_PerAgentState, CounterfactualActorCritic):
    """`CounterfactualActorCritic` with a memory of each agent for its policy; critics get only the global state.

    Args:
        agents: Number of agents.
        act_dim: Largest number of actions of an agent.
        memory: "gru" or "lstm".
        memory_size: Units of the memory, of the layer in front of it, and of the critics' two hidden layers.
        groups: The groups of agents that share their weights.
    """

    def __init__(
        self,
        agents: int,
        act_dim: int,
        memory: TeamMemory = "gru",
        memory_size: int = 64,
        *,
        groups: Groups = "shared",
    ) -> None:
        super().__init__(agents, act_dim, (memory_size, memory_size), groups=groups)
        made = groups_of(groups, agents)
        self.memory = self._memory_of(made, memory, memory_size, "relu")
        self.actor = self._per_agent(made, lambda: self._parts.layers.fc(act_dim), ids=False)

    def remember(self, obs: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return joint observations with additional `features` for the policies, and the state afterwards.

        Args:
            obs: Joint observations `[rows * T, ...]`.
            state: The state before the first step of each sequence, `[rows, agents, ...]` by name.
            begins: As in `parl_core.recurrent`.
        """
        features, after = self.memory.remember(self._seen(obs), state, begins)
        return {**obs, "features": features}, after

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, agents, act_dim]` for the result of `remember`."""
        return self.actor(obs["features"])

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of all policies and their memories."""
        return [*self.memory.parameters(), *self.actor.parameters()]


TeamKind = Literal["q", "actor-critic", "central", "independent", "counterfactual"]

_WITHOUT_MEMORY: Mapping[str, str] = MappingProxyType({"actor-critic": "MADDPG"})
"""Kinds whose networks have no memory, with their algorithms."""


def for_team(
    observation_space: Any,
    action_space: Any,
    kind: TeamKind = "q",
    *,
    hidden: Sequence[int] = (64, 64),
    groups: Groups | None = None,
    memory: TeamMemory | None = None,
    memory_size: int = 64,
    networks: Any = None,
) -> Any:
    """Return a model for the spaces of a `JointEnv`.

        env = make_joint_env("mpe2:simple_spread_v3")
        model = parl.networks.for_team(env.observation_space, env.action_space, "q", memory="gru")

    Args:
        observation_space: The space of joint observations.
        action_space: `MultiDiscrete`, or a `Box` `[agents, numbers]`.
        kind: `"q"` for QMIX and VDN, `"actor-critic"` for MADDPG, `"central"` for MAPPO, `"independent"` for IPPO,
            `"counterfactual"` for COMA.
        hidden: Sizes of the hidden layers; without effect with a memory.
        groups: The groups of agents that share their weights; default `"independent"` of `"actor-critic"`, else
            `"shared"`.
        memory: `"gru"` or `"lstm"`, for every kind but `"actor-critic"`.
        memory_size: Units of the memory, and of the layer in front of it.
        networks: The backend's networks; default: those of the current backend.

    Raises:
        HyperparameterError: The spaces are not those of a team, or the kind does not support the action space or a
            memory.
    """
    networks = networks or backends.current().networks
    require_several_agents(f"a network of the kind {kind!r}", observation_space)
    if memory is not None and kind in _WITHOUT_MEMORY:
        raise HyperparameterError(
            f"networks of the kind {kind!r} ({_WITHOUT_MEMORY[kind]}) have no memory: leave it out"
        )
    parts = observation_space.spaces
    agents, found = int(parts["obs"].shape[0]), kind_of(action_space)
    width = int(action_space.shape[-1]) if found.nvec is None else max(found.nvec)
    if found.nvec is None:
        used = action_space.low < action_space.high
    else:
        used = np.arange(width) < np.array(found.nvec)[:, None]
    if kind == "q":
        if found.nvec is None:
            raise HyperparameterError(
                f"networks of the kind 'q' (QMIX) choose discrete actions, got {action_space}: use MADDPG "
                "('actor-critic') or MAPPO ('central')"
            )
        shared = {"groups": groups or "shared"}
        if memory is None:
            model = networks.TeamQNetwork(agents, width, hidden, **shared)
        else:
            model = networks.RecurrentTeamQNetwork(agents, width, memory, memory_size, **shared)
    elif kind == "actor-critic":
        numbers = {"continuous": True, "used": used} if found.nvec is None else {}
        model = networks.TeamActorCritic(agents, width, hidden, groups=groups or "independent", **numbers)
    elif kind in ("central", "independent"):
        options: dict[str, Any] = {
            "continuous": found.nvec is None,
            "groups": groups or "shared",
            "central": kind == "central",
        }
        if memory is None:
            model = networks.CentralActorCritic(agents, width, hidden, **options)
        else:
            model = networks.RecurrentCentralActorCritic(agents, width, memory, memory_size, **options)
    elif kind == "counterfactual":
        if found.nvec is None:
            raise HyperparameterError(
                f"networks of the kind 'counterfactual' (COMA) choose discrete actions, got {action_space}: use "
                "MAPPO ('central') or MADDPG ('actor-critic')"
            )
        shared = {"groups": groups or "shared"}
        if memory is None:
            model = networks.CounterfactualActorCritic(agents, width, hidden, **shared)
        else:
            model = networks.RecurrentCounterfactualActorCritic(agents, width, memory, memory_size, **shared)
    else:
        raise HyperparameterError(f"kind must be one of {', '.join(map(repr, get_args(TeamKind)))}, got {kind!r}")
    model.action_kind = replace(found, used=None if used.all() else tuple(map(tuple, used.tolist())))
    model.obs_ndim = dimensions_of(observation_space)
    model._obs_scale = _scale_of(parts["obs"])
    return model


def _scale_of(joint: Any) -> tuple[Any, Any] | None:
    """Return the low and the span of `unit_scale` of the observations of all agents, as one number where all are."""
    boxes = [
        gymnasium.spaces.Box(low, high, dtype=joint.dtype) for low, high in zip(joint.low, joint.high, strict=True)
    ]
    low, span = (np.stack(scales).astype(np.float32)[None] for scales in zip(*map(unit_scale, boxes), strict=True))
    if not low.any() and (span == 1.0).all():
        return None
    return _as_one(low), _as_one(span)


def _as_one(numbers: NDArray[np.float32]) -> Any:
    first = float(numbers.flat[0])
    return first if (numbers == first).all() else numbers
