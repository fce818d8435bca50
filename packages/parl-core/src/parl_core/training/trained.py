"""What has to be known besides the weights to use a trained agent again: `agent.json` beside them."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium

from parl_core import backends
from parl_core.atomic_write import write_json
from parl_core.env.vector_group import make_env
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.seeding import seed_everything

__all__ = ["NETWORKS", "Trained", "make_flat_env"]

NETWORKS = {
    "DQN": "QNetwork",
    "DDPG": "DeterministicActorCritic",
    "TD3": "TwinActorCritic",
    "SAC": "SquashedActorCritic",
    "OAC": "SquashedActorCritic",
}
"""Which of a backend's ready-made networks an algorithm trains; the others have actor and critic of their own here."""


def make_flat_env(env_id: str, render_mode: str | None = None) -> Any:
    """Make an environment whose observations are numbers in a box.

    Observations of another space (`Discrete`, `Tuple`, `Dict`, ...) are flattened: one-hot and put side by side.

    Args:
        env_id: of a registered environment.
        render_mode: as of `gymnasium.make`.
    """
    env = make_env(env_id, {"render_mode": render_mode} if render_mode else None)
    if isinstance(env.observation_space, gymnasium.spaces.Box):
        return env
    return gymnasium.wrappers.FlattenObservation(env)


@dataclass(frozen=True)
class Trained:
    """How an agent of a preset was made, and how to make it again.

    Attributes:
        algorithm: name of its class.
        env: registered id of the environment.
        backend: `torch` or `paddle`; the weights fit both.
        hidden: sizes of the hidden layers of each network.
        arguments: of the algorithm's constructor.
        seed: of the first weights and of sampling.
    """

    FILE: ClassVar[str] = "best.ckpt"
    LAST: ClassVar[str] = "last.ckpt"
    DESCRIPTION: ClassVar[str] = "agent.json"

    algorithm: str
    env: str
    backend: str
    hidden: tuple[int, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def make_agent(self) -> Any:
        """Make the agent on the current backend, with fresh weights.

        Raises:
            HyperparameterError: the environment's actions are not such as the algorithm chooses, or the backend has no
                such algorithm.
        """
        backend = backends.current()
        if self.algorithm not in backend.algorithms.__all__:
            known = ", ".join(backend.algorithms.__all__)
            raise HyperparameterError(f"the {backend.name} backend has no algorithm {self.algorithm!r}; it has {known}")
        env = make_flat_env(self.env)
        space = env.action_space
        env.close()
        seed_everything(self.seed)  # before the model: its layers draw the seeds of their first weights when made
        model = self._make_model(backend, space)
        algorithm = getattr(backend.algorithms, self.algorithm)(model, **self.arguments)
        return backend.Agent(algorithm, seed=self.seed)

    def _make_model(self, backend: backends.Backend, space: Any) -> Any:
        network = NETWORKS.get(self.algorithm)
        if network is None or network == "QNetwork":
            if not isinstance(space, gymnasium.spaces.Discrete):
                raise HyperparameterError(
                    f"{self.env} has the actions {space}; {self.algorithm} with this model chooses discrete ones only"
                )
            if network is None:
                return _actor_critic(backend, int(space.n), self.hidden)
            return getattr(backend.networks, network)(int(space.n), self.hidden)
        if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded() or len(space.shape) != 1:
            raise HyperparameterError(
                f"{self.env} has the actions {space}; {self.algorithm} needs a vector of numbers with finite bounds"
            )
        return getattr(backend.networks, network)(int(space.shape[0]), self.hidden)

    def write(self, folder: Path) -> None:
        """Write the description into a run's folder."""
        write_json(folder / self.DESCRIPTION, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Trained":
        """Read the description from a run's folder.

        Raises:
            CheckpointError: there is none, or it is not one.
        """
        path = folder / cls.DESCRIPTION
        try:
            values = json.loads(path.read_text())
            return cls(**{**values, "hidden": tuple(values["hidden"])})
        except FileNotFoundError:
            raise CheckpointError(f"{folder} has no {cls.DESCRIPTION}; give a folder that `parl train` made") from None
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} does not describe an agent: {error}") from error


def _actor_critic(backend: backends.Backend, act_dim: int, hidden: tuple[int, ...]) -> Any:
    fc = backend.layers.fc
    model: Any = backend.Model

    class ActorCritic(model):  # type: ignore[misc]  # which class it derives from is known at run time only
        """Two networks of their own for policy and value, with tanh between the layers."""

        def __init__(self) -> None:
            for head, outputs in (("policy", act_dim), ("value", 1)):
                for depth, size in enumerate(hidden):
                    setattr(self, f"{head}_{depth}", fc(size, act="tanh"))
                setattr(self, f"{head}_out", fc(outputs))

        def policy(self, obs: Any) -> Any:
            return self._through("policy", obs)

        def value(self, obs: Any) -> Any:
            return self._through("value", obs)

        def _through(self, head: str, obs: Any) -> Any:
            for depth in range(len(hidden)):
                obs = getattr(self, f"{head}_{depth}")(obs)
            return getattr(self, f"{head}_out")(obs)

    return ActorCritic()
