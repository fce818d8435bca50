"""Small models of teams of two agents that share weights, written with `parl.Model` and `parl.layers` alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.complex_step import layers, logsumexp
from parl_core.backends import Backend
from parl_core.model import Weights

__all__ = ["AGENTS", "CHOICES", "SEEN", "STATE", "central", "counterfactual", "joint", "log_policy"]

AGENTS, CHOICES, SEEN, STATE, _HIDDEN = 2, 3, 4, 5, 6
DIMENSIONS = {"obs": 2, "state": 1, "alive": 1, "action_mask": 2}

CENTRAL_SHAPES: dict[str, tuple[int, ...]] = {
    "pi1.weight": (_HIDDEN, SEEN),
    "pi1.bias": (_HIDDEN,),
    "pi2.weight": (CHOICES, _HIDDEN),
    "pi2.bias": (CHOICES,),
    "v1.weight": (_HIDDEN, SEEN + STATE),
    "v1.bias": (_HIDDEN,),
    "value_head.weight": (1, _HIDDEN),
    "value_head.bias": (1,),
}
INDEPENDENT_SHAPES = {**CENTRAL_SHAPES, "v1.weight": (_HIDDEN, SEEN)}
COUNTERFACTUAL_SHAPES: dict[str, tuple[int, ...]] = {
    "pi1.weight": (_HIDDEN, SEEN),
    "pi1.bias": (_HIDDEN,),
    "pi2.weight": (CHOICES, _HIDDEN),
    "pi2.bias": (CHOICES,),
    "q1.weight": (_HIDDEN, SEEN + STATE + AGENTS * CHOICES),
    "q1.bias": (_HIDDEN,),
    "q2.weight": (CHOICES, _HIDDEN),
    "q2.bias": (CHOICES,),
}


def central(backend: Backend, sees_state: bool = True) -> Any:
    """Policy of what each agent sees; value of that and, where asked for, the global state."""
    lib: Any = backend.layers

    class Team(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        obs_ndim = DIMENSIONS

        def __init__(self) -> None:
            self.pi1, self.pi2 = lib.fc(size=_HIDDEN, act="tanh"), lib.fc(size=CHOICES)
            self.v1, self.value_head = lib.fc(size=_HIDDEN, act="tanh"), lib.fc(size=1)

        def policy(self, obs: Any) -> Any:
            assert "state" not in obs, "actors must not see the global state"
            return lib.reshape(self.pi2(self.pi1(lib.reshape(obs["obs"], [-1, SEEN]))), [-1, AGENTS, CHOICES])

        def value(self, obs: Any) -> Any:
            seen = obs["obs"]
            if sees_state:
                seen = lib.concat([seen, lib.stack([obs["state"]] * AGENTS, axis=1)], axis=-1)
            else:
                assert "state" not in obs, "critics of IPPO must not see the global state"
            rows = lib.reshape(seen, [-1, seen.shape[-1]])
            return lib.reshape(self.value_head(self.v1(rows)), [-1, AGENTS, 1])

    return Team()


def counterfactual(backend: Backend) -> Any:
    """Policy of what each agent sees; Q of that, the state, and the others' actions."""
    lib: Any = backend.layers

    class Team(backend.Model):  # type: ignore[name-defined,misc]  # likewise
        obs_ndim = DIMENSIONS

        def __init__(self) -> None:
            self.pi1, self.pi2 = lib.fc(size=_HIDDEN, act="tanh"), lib.fc(size=CHOICES)
            self.q1, self.q2 = lib.fc(size=_HIDDEN, act="tanh"), lib.fc(size=CHOICES)

        def policy(self, obs: Any) -> Any:
            return lib.reshape(self.pi2(self.pi1(lib.reshape(obs["obs"], [-1, SEEN]))), [-1, AGENTS, CHOICES])

        def values(self, obs: Any, action: Any) -> Any:
            zeros = action[:, 0] * 0.0
            first, second = action[:, 0], action[:, 1]
            others = lib.stack([lib.concat([zeros, second], axis=-1), lib.concat([first, zeros], axis=-1)], axis=1)
            state = lib.stack([obs["state"]] * AGENTS, axis=1)
            rows = lib.concat([obs["obs"], state, others], axis=-1)
            found = self.q2(self.q1(lib.reshape(rows, [-1, rows.shape[-1]])))
            return lib.reshape(found, [-1, AGENTS, CHOICES])

        def get_actor_params(self) -> list[Any]:
            return [*self.pi1.parameters(), *self.pi2.parameters()]

        def get_critic_params(self) -> list[Any]:
            return [*self.q1.parameters(), *self.q2.parameters()]

    return Team()


def joint(rng: np.random.Generator, n: int, dtype: Any = np.float64) -> dict[str, NDArray[Any]]:
    """Joint observations with a mask that leaves each agent its first action, and most of the others."""
    mask = rng.random((n, AGENTS, CHOICES)) < 0.8
    mask[:, :, 0] = True
    return {
        "obs": rng.normal(size=(n, AGENTS, SEEN)).astype(dtype),
        "state": rng.normal(size=(n, STATE)).astype(dtype),
        "alive": np.ones((n, AGENTS), np.int8),
        "action_mask": mask.astype(np.int8),
    }


def log_policy(weights: Weights, obs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Logarithms of the probabilities of all agents' actions, `[n, agents, choices]`; weights may be complex."""
    logits = layers(weights, ("pi1", "pi2"), obs["obs"].reshape(-1, SEEN).astype(np.float64))
    masked = np.where(obs["action_mask"].reshape(-1, CHOICES) != 0, logits, -1e30)
    normalised: NDArray[Any] = masked - logsumexp(masked, axis=1)[:, None]
    return normalised.reshape(-1, AGENTS, CHOICES)
