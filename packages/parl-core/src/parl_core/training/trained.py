"""Trained agents and the environments they were made for: `agent.json`, and the standard preprocessing by kind.

`agent.json` is in the folder of the weights, and has all other data for the use of an agent. `StandardEnv` gives an
environment the preprocessing that agents of its kind are usually trained with:

    kind         observations              actions        from an id
    DISCRETE     a vector of numbers       choices        CartPole-v1
    CONTINUOUS   a vector of numbers       numbers        HalfCheetah-v5
    ATARI        four frames [4, 84, 84]   choices        ALE/Pong-v5, PongNoFrameskip-v4

Environments of other packages are found by their ids, and registered when one is used:

    MinAtar/Breakout-v1               minatar    unchanged: images of 10 x 10, one plane for each kind of object
    MiniGrid-Empty-5x5-v0             minigrid   the visible part of the grid, and the direction; no mission text
    dm_control/cartpole-swingup-v0    shimmy     dictionaries of numbers, which the command flattens

Environments of several agents (`mpe2:simple_spread_v3`, see `parl_core.env.joint`) get no preprocessing and have joint
observations; the networks of the algorithms for them are those of `parl.networks.for_team`.

Networks and hyper-parameters differ between kinds: a program keeps a table by kind and selects a row with `pick`.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import gymnasium
import numpy as np

from parl_core import backends
from parl_core._encoders import parts_of
from parl_core.atomic_write import write_json
from parl_core.env._vector_group import make_env
from parl_core.env.atari import make_atari
from parl_core.env.joint import is_joint, make_joint_env, misnamed
from parl_core.env.matrix_games import GAMES
from parl_core.env.normalize import wrap_rms
from parl_core.env.wrappers import PreviousStep
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.seeding import seed_everything
from parl_core.space_networks import Kind
from parl_core.spaces import blank_observations, has_goals, kind_of
from parl_core.training.recipes import NETWORKS, Recipe, find_recipe, learns_from_log, plain, read_plain

__all__ = [
    "EnvKind",
    "StandardEnv",
    "Trained",
    "folder_of_module",
    "import_named",
    "is_atari",
    "make_flat_env",
    "make_standard_env",
    "model_kind",
    "search_first",
]

T = TypeVar("T")

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "ActorCritic": "actor-critic",
        "QNetwork": "q",
        "QuantileNetwork": "quantile",
        "CategoricalNetwork": "categorical",
        "DiscreteActorCritic": "discrete-twin",
        "DeterministicActorCritic": "deterministic",
        "TwinActorCritic": "twin",
        "SquashedActorCritic": "squashed",
        "NormalisedTwinActorCritic": "normalised-twin",
        "GaussianActorCritic": "gaussian",
        "QuantileActorCritic": "quantile-critics",
        "EnsembleActorCritic": "ensemble",
        "BatchNormActorCritic": "batch-normalised",
        "ImplicitActorCritic": "implicit",
    }
)
"""The name of these networks in `for_spaces`."""


def make_flat_env(env_id: str, render_mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """Make an environment whose observations are boxes of numbers, or have images, goals, agents or a mask of actions.

    Observations of another space (`Discrete`, `Tuple`, `Dict`, ...) are flattened: one-hot and concatenated.

    Args:
        env_id: The id of a registered environment; a package before its `:` may be in the working directory.
        render_mode: As in `gymnasium.make`.
        options: The options of the environment; with `previous_step=True` observations have the previous action and
            reward as well (`PreviousStep`).

    Raises:
        HyperparameterError: A part of the observations is not an array of a fixed shape, such as a text, or an option
            is unknown.
        ImportError: The package of the environment is missing.
    """
    options, previous_step = _without_previous_step(options)
    options |= {"render_mode": render_mode} if render_mode else {}
    root = env_id.rpartition(":")[0].partition(".")[0]
    if root and find_spec(root) is None:  # a folder of this name must not hide an installed package
        _search_working_directory()
    if is_joint(env_id):
        if previous_step:
            raise HyperparameterError(f"previous_step is for environments of one agent; {env_id} has several")
        return make_joint_env(env_id, **options)
    _register_family(env_id)
    try:
        made = make_env(env_id, options or None)
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:
        package = env_id.partition(":")[0].partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError)
        is_game = ":" not in env_id and get_close_matches(env_id.lower(), GAMES, 1, 0.75)
        if not is_game and ":" not in env_id and not missing:
            hint = f"If a module of your own registers it: --env-module MODULE, or the name MODULE:{env_id}"
            raise gymnasium.error.UnregisteredEnv(f"{error} {hint}") from None
        if not is_game and (":" not in env_id or (missing and find_spec(package) is not None)):
            raise
        raise misnamed(env_id) from None
    env = _make_of_family(env_id, made)
    env = PreviousStep(env) if previous_step else env
    parts = parts_of(env.observation_space)
    kept = any(part.image is not None or part.path == ("action_mask",) for part in parts)
    if kept or has_goals(env.observation_space) or isinstance(env.observation_space, gymnasium.spaces.Box):
        return env
    return gymnasium.wrappers.FlattenObservation(env)


def model_kind(algorithm: str) -> Kind | None:
    """Return the kind of `for_spaces` for an algorithm; None if it has its own network."""
    return "policy" if algorithm == "PolicyGradient" else KINDS.get(NETWORKS.get(algorithm, ""))


def import_named(module: str) -> None:
    """Import a user's module, such as one that registers environments; the working directory is searched, too.

    Raises:
        HyperparameterError: It is a path.
        ImportError: The module is missing or cannot be imported.
    """
    if _is_path(module):
        raise HyperparameterError(f"--env-module {module} is no name of a module: write it as in `import my.envs`")
    _search_working_directory()
    try:
        import_module(module)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or module)
        hint = "; start the command in its folder, or add that to PYTHONPATH" if is_missing else ""
        raise ImportError(f"--env-module {module} cannot be imported: {error}{hint}", name=error.name) from error


def _is_path(module: str) -> bool:
    return "/" in module or "\\" in module or module.startswith(".") or module.endswith(".py")


def folder_of_module(env_id: str, module: str) -> str:
    """Return the folder in which the module that registers an environment is found; an empty text for installed ones.

    Args:
        env_id: The id of the environment, which may name a package.
        module: A module that is imported first, or an empty text.
    """
    for name, is_looked_for_here in ((module, True), (env_id.rpartition(":")[0], False)):
        root = name.partition(".")[0]
        if not root or _is_path(name) or root == __name__.partition(".")[0]:
            continue
        if is_looked_for_here or find_spec(root) is None:
            _search_working_directory()
        if (spec := find_spec(root)) is None:
            continue
        place = Path(spec.origin or "") if spec.has_location else Path()
        if spec.submodule_search_locations is not None:
            place = Path(next(iter(spec.submodule_search_locations), ""))
        folder = place.absolute().parent
        if place.name and not {"site-packages", "dist-packages"} & set(folder.parts):
            return str(folder)
    return ""


def search_first(folder: str, run: Path) -> None:
    """Let modules be found in a folder before all others; an empty text and a missing folder have no effect.

    Args:
        folder: The folder that the description of a run names.
        run: The folder of the run.

    Raises:
        CheckpointError: The folder is relative or in the run's folder, so that its code may have come with the run.
    """
    if folder and (not Path(folder).is_absolute() or Path(folder).resolve().is_relative_to(run.resolve())):
        raise CheckpointError(
            f"the run in {run} names {folder} as the folder of the module of its environment: code that may have come "
            "with a run is not imported; if you trust it, move it elsewhere, and write that absolute path into "
            "module_folder of run.json and agent.json"
        )
    if folder and Path(folder).is_dir():
        sys.path[:] = [folder, *(other for other in sys.path if other != folder)]
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)


def _search_working_directory() -> None:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # `python program.py` puts it there, `parl` does not


def make_standard_env(
    env_id: str,
    module: str = "",
    render_mode: str | None = None,
    *,
    training: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Make an environment with the preprocessing of `parl train`; the function can be called in actors.

    Args:
        env_id: The id of a registered environment; an Atari game gets the usual preprocessing.
        module: A module that is imported first.
        render_mode: As in `gymnasium.make`.
        training: Whether the environment is for training: in an Atari game, a life is then an episode, and rewards are
            -1, 0 or 1.
        options: The options of the environment, and `previous_step` as in `make_flat_env`.

    Raises:
        HyperparameterError: An observation has a part without features, or an option is unknown.
        ImportError: The module, or a package of the environment, is missing.
    """
    if module:
        import_named(module)
    if is_atari(env_id):
        options, previous_step = _without_previous_step(options)
        env = make_atari(env_id, whole_games=not training, render_mode=render_mode, options=options)
        return PreviousStep(env) if previous_step else env
    return make_flat_env(env_id, render_mode, options)


def _without_previous_step(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """Return options for `gymnasium.make`, and whether observations have the previous action and reward.

    Raises:
        HyperparameterError: `previous_step` is neither true nor false.
    """
    left = dict(options or {})
    wanted = left.pop("previous_step", False)
    if not isinstance(wanted, bool):
        raise HyperparameterError(f"previous_step must be true or false, got {wanted!r}")
    return left, wanted


def is_atari(env_id: str) -> bool:
    """Return whether an id is that of an Atari game."""
    return env_id.startswith("ALE/") or "NoFrameskip" in env_id


class _Family(NamedTuple):
    """A package of environments, which registers their ids with Gymnasium when one of them is used.

    Attributes:
        module: The module that registers them.
        function: The function of the module that registers them; empty if importing does.
        extra: The extra of parl-core that installs the package.
    """

    module: str
    function: str
    extra: str


_GRID = _Family("minigrid", "", "minigrid")
_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "MinAtar/": _Family("minatar.gym", "register_envs", "minatar"),
        "MiniGrid-": _GRID,
        "BabyAI-": _GRID,
        "dm_control/": _Family("shimmy", "", "dmcontrol"),
    }
)


def _register_family(env_id: str) -> None:
    """Register the environments of the package to which an id belongs; other ids have no effect.

    Raises:
        ImportError: The package is not installed; the message is the `pip install` line.
    """
    family = next((found for prefix, found in _FAMILIES.items() if env_id.startswith(prefix)), None)
    if family is None or env_id in gymnasium.registry:
        return
    try:
        module = import_module(family.module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{env_id} needs {error.name}:\n    pip install "parl-core[{family.extra}]"', name=error.name
        ) from None
    if family.function:
        getattr(module, family.function)()


def _make_of_family(env_id: str, env: Any) -> Any:
    """Return an environment of one of these packages with its preprocessing; return others unchanged."""
    return _GridObservation(env) if env_id.startswith(("MiniGrid-", "BabyAI-")) else env


class _GridObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the part of a grid that is seen, with bounds that its numbers reach, and the direction.

    MiniGrid declares its cells as uint8 in 0..255; their entries, kind, colour and state, are numbers up to 10. The
    mission is left out: a text that names the task where there are several; here there is one.
    """

    LARGEST = 10

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        parts: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Dict(
            image=gymnasium.spaces.Box(0, self.LARGEST, parts["image"].shape, np.uint8), direction=parts["direction"]
        )

    def observation(self, observation: Any) -> Any:
        """Return both entries."""
        return {"image": observation["image"], "direction": observation["direction"]}


@dataclass(frozen=True)
class Trained:
    """The description of an agent of a recipe, from which it can be recreated.

    Attributes:
        algorithm: Name of its class.
        env: The registered id of the environment.
        backend: `torch` or `paddle`; the weights fit both.
        hidden: Sizes of the hidden layers of each network; None for the defaults of the environment.
        arguments: The arguments of the algorithm's constructor.
        seed: The seed of the first weights and of sampling.
        network: Further options of `parl.networks.for_spaces`; for several agents, all options of `for_team`; for a
            DecisionTransformer, those of its network.
        module: The module that registers the environment, imported before it is made.
        module_folder: The folder in which that module was found, and is looked for first; empty if it is installed.
        normalized: Whether observations are normalised by statistics that are saved with the weights.
        target_return: The target return of a DecisionTransformer.
        env_options: Options of the environment.
    """

    FILE: ClassVar[str] = "best.ckpt"
    LAST: ClassVar[str] = "last.ckpt"
    DESCRIPTION: ClassVar[str] = "agent.json"

    algorithm: str
    env: str
    backend: str
    hidden: tuple[int, ...] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    network: dict[str, Any] = field(default_factory=dict)
    module: str = ""
    normalized: bool = False
    target_return: float | None = None
    env_options: Mapping[str, Any] = field(default_factory=dict)
    module_folder: str = ""

    def make_env(self, render_mode: str | None = None) -> Any:
        """Make the environment, for evaluation; logged data have observations as arrays, so they are arrays here."""
        env = make_standard_env(self.env, self.module, render_mode, options=self.env_options)
        if isinstance(env.observation_space, gymnasium.spaces.Box) or not learns_from_log(self.algorithm):
            return env
        return gymnasium.wrappers.FlattenObservation(env)

    def make_agent(self) -> Any:
        """Make the agent on the current backend, with fresh weights; its model is that of `parl.networks.for_spaces`.

        Raises:
            HyperparameterError: The algorithm cannot choose the environment's actions, or the backend does not have the
                algorithm.
        """
        backend = backends.current()
        if self.algorithm not in backend.algorithms.__all__:
            known = ", ".join(backend.algorithms.__all__)
            raise HyperparameterError(f"the {backend.name} backend has no algorithm {self.algorithm!r}; it has {known}")
        env = self.make_env()
        spaces = env.observation_space, env.action_space
        env.close()
        seed_everything(self.seed)  # before the model: its layers draw the seeds of their first weights when made
        if getattr(backend.algorithms, self.algorithm).TEAM:
            return backend.Agent(self._make_team(backend, *spaces), seed=self.seed)
        kind = model_kind(self.algorithm)
        model = self._make_transformer(backend, *spaces) if kind is None else self._make_model(backend, kind, *spaces)
        algorithm = getattr(backend.algorithms, self.algorithm)(model, **self.arguments)
        agent = backend.Agent(algorithm, seed=self.seed)
        # its network's value is never computed, and its layers could not be saved without shapes
        if self.algorithm == "BC":
            agent.run(model.value, blank_observations(spaces[0], 1))
        return agent

    def for_this_machine(self) -> "Trained":
        """Return the same description with the GPU of training replaced by `"auto"`: this machine may have no GPU."""
        if self.arguments.get("device", "cpu") == "cpu":
            return self
        return dataclasses.replace(self, arguments={**self.arguments, "device": "auto"})

    @staticmethod
    def require_weights(path: Path) -> None:
        """Raise an error if the file of weights of a run is missing.

        Raises:
            CheckpointError: The file is missing; the message explains when it is written.
        """
        if not path.exists():
            raise CheckpointError(f"{path} does not exist yet: it is written at the first evaluation, or at the end")

    def load(self, path: Path, render_mode: str | None = None) -> tuple[Any, Callable[[], Any]]:
        """Return the trained agent, and a function that makes environments with its preprocessing.

        Args:
            path: Path of its weights.
            render_mode: The render mode of the environments, as in `gymnasium.make`.

        Raises:
            CheckpointError: The weights are missing, or belong to another agent.
        """
        agent = self.for_this_machine().make_agent()
        self.require_weights(path)
        if not self.normalized:
            agent.restore(path)
            return agent, lambda: self.make_env(render_mode)
        env = wrap_rms(self.make_env(), None, test=True)
        agent.restore(path, normalization=env)
        env.close()
        return agent, lambda: wrap_rms(self.make_env(render_mode), None, test=True, ob_rms=env.get_ob_rms())

    def _make_model(self, backend: backends.Backend, kind: Kind, observation: Any, action: Any) -> Any:
        try:
            if (
                kind not in ("actor-critic", "policy", "q", "quantile", "categorical", "discrete-twin")
                and isinstance(action, gymnasium.spaces.Box)
                and not action.is_bounded()
            ):
                raise HyperparameterError(f"{self.algorithm} needs numbers with finite bounds, got {action}")
            return backend.networks.for_spaces(observation, action, kind, hidden=self.hidden, **self.network)
        except HyperparameterError as error:
            raise HyperparameterError(f"{self.algorithm} on {self.env}: {error}") from error

    def _make_team(self, backend: backends.Backend, observation: Any, action: Any) -> Any:
        """Return an algorithm for several agents."""
        made = getattr(backend.algorithms, self.algorithm)
        try:
            model = backend.networks.for_team(observation, action, made.TEAM, **self.network)
        except HyperparameterError as error:
            raise HyperparameterError(f"{self.algorithm} on {self.env}: {error}") from error
        sizes: dict[str, Any] = {}
        if self.algorithm == "COMA":
            sizes = {"n_actions": int(action.nvec.max()), "n_agents": len(action.nvec)}
        elif self.algorithm == "QMIX":
            sizes = {"qmixer_model": backend.networks.QMixer(len(action.nvec))}
        return made(model, **sizes, **self.arguments)

    def _make_transformer(self, backend: backends.Backend, observation: Any, action: Any) -> Any:
        if NETWORKS.get(self.algorithm) != "TrajectoryTransformer":
            raise HyperparameterError(f"{self.algorithm} has no standard network: train it in a program, with a model")
        width = int(action.n) if isinstance(action, gymnasium.spaces.Discrete) else int(np.prod(action.shape))
        return backend.transformer.TrajectoryTransformer(int(np.prod(observation.shape)), width, **self.network)

    def write(self, folder: Path) -> None:
        """Write the description into a run's folder."""
        values = {one.name: plain(getattr(self, one.name)) for one in dataclasses.fields(self)}
        write_json(folder / self.DESCRIPTION, values)

    @classmethod
    def read(cls, folder: Path) -> "Trained":
        """Read the description from a run's folder.

        Raises:
            CheckpointError: It is missing or not a file of weights.
        """
        path = folder / cls.DESCRIPTION
        try:
            values = json.loads(path.read_text())
            found = cls(**{name: read_plain(value) for name, value in values.items()})
        except FileNotFoundError:
            inside = sorted(folder.glob(f"*/{cls.DESCRIPTION}"))
            give = (
                f"one of the runs inside, such as {inside[0].parent}" if inside else "a folder that `parl train` made"
            )
            raise CheckpointError(f"{folder} has no {cls.DESCRIPTION}; give {give}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} does not describe an agent: {error}") from error
        search_first(found.module_folder, folder)
        return found


class EnvKind(StrEnum):
    """Kinds of environments, by the networks and hyper-parameters that suit them."""

    DISCRETE = "discrete"
    CONTINUOUS = "continuous"
    ATARI = "atari"


@dataclass(frozen=True)
class StandardEnv:
    """A registered environment, made for training or for evaluation; it can be sent to actors.

    Attributes:
        env_id: `CartPole-v1`, `HalfCheetah-v5`, `ALE/Pong-v5`, …
        options: The options of the environment.
    """

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> EnvKind:
        """Return the kind of the environment.

        Raises:
            HyperparameterError: Observations or actions are not of one of these kinds.
        """
        if self._is_atari:
            return EnvKind.ATARI
        observation, action = self._spaces
        if len(observation.shape) != 1:
            raise HyperparameterError(
                f"{self.env_id} has observations of shape {list(observation.shape)}; there is no standard network for "
                "them: write a model, and wrap the environment as it needs it"
            )
        if isinstance(action, gymnasium.spaces.Discrete):
            return EnvKind.DISCRETE
        if isinstance(action, gymnasium.spaces.Box) and len(action.shape) == 1:
            return EnvKind.CONTINUOUS
        raise HyperparameterError(f"{self.env_id} has the actions {action}; they must be Discrete, or a vector")

    @property
    def kind_by_actions(self) -> EnvKind:
        """Return the kind according to actions only, for networks that `for_spaces` makes.

        Raises:
            HyperparameterError: No policy supports its action space.
        """
        if self._is_atari:
            return EnvKind.ATARI
        kind = kind_of(self._spaces[1])
        return EnvKind.CONTINUOUS if kind.continuous and kind.nvec is None else EnvKind.DISCRETE

    @property
    def has_goals(self) -> bool:
        """Return whether its observations have goals, as those of Gymnasium's GoalEnv."""
        return not self._is_atari and has_goals(self._spaces[0])

    @property
    def has_numbers_to_normalize(self) -> bool:
        """Return whether observations are an array but not an image, which the network scales by its bounds."""
        space = self._spaces[0]
        return isinstance(space, gymnasium.spaces.Box) and parts_of(space)[0].image is None

    @property
    def act_dim(self) -> int:
        """Number of choices, or of numbers in an action."""
        action = self._spaces[1]
        return int(action.n) if isinstance(action, gymnasium.spaces.Discrete) else int(np.prod(action.shape))

    @property
    def goal(self) -> float | None:
        """Mean return at which Gymnasium counts the environment as solved; None if it has none."""
        self._spaces  # noqa: B018 - an environment of a package that is not imported yet is registered now
        threshold = gymnasium.spec(self.env_id).reward_threshold
        return None if threshold is None else float(threshold)

    def recipe(self, algorithm: str) -> Recipe:
        """Return the recipe of an algorithm (`"DQN"`) for this environment, or for those of its kind.

        Raises:
            HyperparameterError: There is none.
        """
        return find_recipe(algorithm, self.env_id, lambda: self.kind)

    def pick(self, table: Mapping[str, T] | Mapping[EnvKind, T]) -> T:
        """Return a table's entry for this kind.

        Raises:
            HyperparameterError: There is none.
        """
        if self.kind not in table:
            known = ", ".join(sorted(table))
            raise HyperparameterError(f"{self.env_id} is of the kind {self.kind}; this program is for {known}")
        return table[self.kind]

    def make(self) -> Any:
        """Make one for training; in an Atari game a life is an episode, and rewards are -1, 0 or 1."""
        return make_standard_env(self.env_id, training=True, options=self.options)

    def make_to_evaluate(self) -> Any:
        """Make one for evaluation, with whole episodes and the environment's own rewards."""
        return make_standard_env(self.env_id, options=self.options)

    @property
    def _is_atari(self) -> bool:
        return is_atari(self.env_id)

    @cached_property
    def _spaces(self) -> tuple[Any, Any]:
        env = self.make()
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()
