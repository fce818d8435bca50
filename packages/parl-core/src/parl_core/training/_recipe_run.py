"""Runs of `parl train`: a recipe on an environment, in a folder.

A run writes its request to `run.json`, so that it can be continued later:

    request ──> RecipeRun.train(run) ──> run.json, agent.json, checkpoints/, best.ckpt, tables
                    ^── RecipeRun.read(folder) ──> train(run, ...) once more, with Run.resume(folder)
"""

import inspect
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

import gymnasium
import numpy as np

from parl_core import backends
from parl_core._version import __version__
from parl_core.actors import ActorSystem, choose_actors, open_actors
from parl_core.atomic_write import write_json
from parl_core.checkpoint import CheckpointStore
from parl_core.env.normalize import NormalizeVector
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, DatasetError, HyperparameterError
from parl_core.offline import OfflineDataset, read_minari, read_npz
from parl_core.replay import FrameReplayMemory
from parl_core.space_networks import for_spaces
from parl_core.training._requirements import require_goals, require_log
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.apex import ApexSettings, train_apex
from parl_core.training.callbacks import standard_callbacks
from parl_core.training.checkpoints import Checkpoints, LoopParts
from parl_core.training.curves import read_run
from parl_core.training.evaluation import RecordVideo, evaluate
from parl_core.training.events import Callback, Ended, Evaluation, Stop
from parl_core.training.logs import JsonLines
from parl_core.training.novelty import NoveltyReward, make_novelty
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.offline import OfflineSettings, evaluate_with_target_return, train_offline
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.recipes import RECIPES, EpisodeSettings, Recipe, find_recipe, plain
from parl_core.training.results import logged, machine
from parl_core.training.run import Run
from parl_core.training.settings import read_setting, with_settings
from parl_core.training.trained import (
    StandardEnv,
    Trained,
    import_named,
    is_atari,
    make_standard_env,
    model_kind,
    search_first,
)

__all__ = ["ACTING_APART", "RecipeRun", "check_rendering", "has_ended", "play", "preset", "with_actors"]

# Evaluations while training have seeds that those of `parl evaluate` do not share.
SEED_WHILE_TRAINING = 2**31

EPISODES_WHILE_TRAINING = 20

# Number of updates between two evaluations with logged data, because an evaluation takes as long as many updates.
FEWEST_UPDATES = 100

ACTING_APART = (ActorLearnerSettings, ApexSettings)
"""Settings of loops whose actors affect learning."""

_OPTIONS = frozenset(inspect.signature(for_spaces).parameters)

_FRAMEWORKS = {"torch": "torch", "paddle": "paddlepaddle"}


@dataclass(frozen=True)
class RecipeRun:
    """The request for one run of a recipe.

    Attributes:
        algorithm: Name of its class.
        env: The registered id of the environment.
        backend: `torch` or `paddle`.
        seed: The seed of weights, environments and sampling.
        steps: Minimum number of environment steps (with logged data: updates); None: the recipe's. The last
            rollout, or step of all environments, is completed. The recipe's rollouts are shortened if they have more
            steps, unless their size is given.
        goal: The mean return that stops training when two consecutive evaluations reach it; None: the recipe's.
        checkpoint_every: Steps between two checkpoints.
        extended_to: The larger budget with which the run was resumed, in environment steps; None: `steps`.
        given: Settings that differ from the recipe's, by the names of `parl_core.training.settings`, as JSON.
        module: A module that registers the environment; imported before the environment is made.
        data: The logged transitions to learn from, a `.npz` file or `minari:NAME`; empty: the recorded ones of the two
            small tasks of `parl_core.training.results.logged`.
        env_options: Options of the environment.
        module_folder: The folder in which the module was found, and is looked for first; empty if it is installed.
    """

    FILE: ClassVar[str] = "run.json"
    FORMAT: ClassVar[str] = "parl-run"
    VERSION: ClassVar[int] = 1

    algorithm: str
    env: str
    backend: str
    seed: int = 0
    steps: int | None = None
    goal: float | None = None
    checkpoint_every: int = 10_000
    extended_to: int | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""
    data: str = ""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    module_folder: str = ""

    @cached_property
    def recipe(self) -> Recipe:
        """The hyper-parameters, with the requested steps and settings, and the budget of a resumed run.

        Raises:
            HyperparameterError: There is no recipe, a setting is unknown, a value does not suit its setting, or logged
                data are given to an algorithm that learns in the environment.
            ImportError: The module is missing.
        """
        recipe = preset(self.algorithm, self.env, self.module, self.env_options)
        if self.data and not isinstance(recipe.loop, OfflineSettings):
            offline = sorted({name for (name, _), one in RECIPES.items() if isinstance(one.loop, OfflineSettings)})
            raise HyperparameterError(
                f"{self.algorithm} learns in the environment, not from logged data: leave out --data, or choose one of "
                f"{', '.join(name.lower() for name in offline)}"
            )
        if self.steps is not None:
            recipe = recipe.with_steps(self.steps)
        if isinstance(recipe.loop, OffPolicySettings):
            self._refuse_hindsight_without_goals()  # checked before settings that conflict with hindsight
        recipe = with_settings(self.algorithm, recipe, self.given)
        if self.steps is not None and isinstance(recipe.loop, OnPolicySettings):
            recipe = _within(recipe, self.steps, self.given)
        return recipe if self.extended_to is None else recipe.with_steps(self.extended_to)

    def _refuse_hindsight_without_goals(self) -> None:
        asked = self.given.get("hindsight")
        asked = read_setting(asked) if isinstance(asked, str) else asked
        if asked is not None:
            env = make_standard_env(self.env, self.module, options=self.env_options)
            space = env.observation_space
            env.close()
            require_goals(asked, space)

    @property
    def total_steps(self) -> int:
        """The maximum number of environment steps (with logged data: updates)."""
        return self.recipe.steps

    def extended(self, steps: int) -> "RecipeRun":
        """Return the same run with another budget: see `Recipe.with_steps`."""
        return replace(self, extended_to=steps)

    def on_device(self, device: str) -> "RecipeRun":
        """Return the same run on another device."""
        return replace(self, given={**self.given, "device": device})

    def require_device(self, folder: Path) -> None:
        """Raise an error if the run's device is missing.

        Args:
            folder: The folder of the run, for the message.

        Raises:
            CheckpointError: The device that the run was given is not there.
        """
        device = self.given.get("device")
        if device is None:
            return
        try:
            backends.current().Algorithm(device=device)
        except HyperparameterError as error:
            raise CheckpointError(
                f"the run in {folder} is one on {device}, which is not there; to continue on the CPU, type parl resume "
                f"{quote(str(folder))} --device cpu"
            ) from error

    def trained(self) -> Trained:
        """Return the description of the agent."""
        sizes = dict(self.recipe.sizes)
        network = sizes
        if model_kind(self.algorithm) is not None:
            network = {name: value for name, value in sizes.items() if name not in ("hidden", "continuous")}
        wanted = None
        if self.algorithm == "DecisionTransformer":  # the return of the best tenth of the data
            wanted = float(np.quantile(self.dataset().episode_returns, 0.9))
        return Trained(
            self.algorithm,
            self.env,
            self.backend,
            None if network is sizes else sizes.get("hidden"),
            dict(self.recipe.algorithm),
            self.seed,
            network,
            self.module,
            self.recipe.normalize and StandardEnv(self.env, self.env_options).has_numbers_to_normalize,
            wanted,
            self.env_options,
            self.module_folder,
        )

    def dataset(self) -> OfflineDataset:
        """Return the logged transitions to learn from.

        Raises:
            HyperparameterError: No data were given, and there are no recorded data for the task.
            DatasetError: The file cannot be read.
        """
        if self.data.startswith("minari:"):
            return read_minari(self.data.removeprefix("minari:"), download=True)
        if self.data:
            return read_npz(self.data)
        if self.env in ("CartPole-v1", "Pendulum-v1"):
            return logged(self.env, self.recipe.log)
        raise HyperparameterError(
            f"{self.algorithm} learns from logged data, but there are none for {self.env}: give --data FILE.npz (as "
            "parl_core.training.record_episodes records it) or --data minari:NAME"
        )

    def made(self) -> tuple[Trained, Any, OfflineDataset | None]:
        """Return the description, a new agent, and any logged data, without writing files.

        Raises:
            HyperparameterError: The settings do not suit, or there are fewer logged transitions than a batch has.
            DatasetError: The logged data cannot be read, or are not of this environment.
        """
        trained = self.trained()
        agent = trained.make_agent()
        if not isinstance(self.recipe.loop, OfflineSettings):
            return trained, agent, None
        data = self.dataset().scaled_rewards(self.recipe.reward_scale)
        env = trained.make_env()
        space, actions, own = env.observation_space, env.action_space, env.unwrapped.observation_space
        env.close()
        if agent.alg.NEEDS_HISTORY and isinstance(actions, gymnasium.spaces.Discrete) and data.action.ndim == 1:
            data = data.with_one_hot_actions(int(actions.n))
        if data.obs.shape[1:] != space.shape:
            flat = f", which has {own} as gymnasium.spaces.flatten gives it"
            raise DatasetError(
                f"{data.source} has observations of shape {list(data.obs.shape[1:])}, {self.env} those of {space}"
                f"{'' if isinstance(own, gymnasium.spaces.Box) else flat}: give data that were logged in it"
            )
        require_log(agent, data, self.recipe.loop.batch_size)
        return trained, agent, data

    def train(
        self,
        run: Run,
        *,
        actors: int | None = None,
        cluster: str = "",
        max_steps: int | None = None,
        videos: int | None = None,
        fresh_episodes: bool = False,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> Ended:
        """Train in a run's folder, or continue where a resumed run stopped.

        Args:
            run: A new one, or one of `Run.resume`.
            actors: Number of remote actors for the environments; 0: this process, also for the actors of IMPALA, A3C
                and ApeX. Default: none, for IMPALA, A3C and ApeX those of the settings. The place of the environments
                does not change results.
            cluster: Address of a running cluster for them; empty: a private one of this machine.
            max_steps: The step at which to stop for now.
            videos: The number of evaluations between videos; None: no videos.
            fresh_episodes: See `Checkpoints`.
            callbacks: The callbacks that are called in addition to the standard ones.
            progress: Whether to show progress on standard error.

        Raises:
            HyperparameterError: Nothing is left to do, or the settings are incompatible.
            DatasetError: The logged data cannot be learned from.
            CheckpointError: The run cannot be resumed, or a checkpoint cannot be written.
        """
        if run.resumed:
            self._check_resumable(run.path)
        recipe = self.recipe
        trained, agent, data = self.made()
        offline = data is not None
        if videos is not None:
            check_rendering(trained, "rgb_array")
        novelty = self._novelty(trained)

        def describe() -> None:
            trained.write(run.path)
            self.write(run.path)
            run.how_to_resume = f"parl resume {quote(str(run.path))}"

        with ExitStack() as stack:
            envs: Any = None
            normalization = None
            system = _actors_of(recipe, actors, cluster)
            if system is not None:
                stack.enter_context(system)
            if not offline and not isinstance(recipe.loop, ACTING_APART):
                make = partial(make_standard_env, self.env, self.module, training=True, options=self.env_options)
                share = _envs_per_actor(recipe.num_envs, actors, cluster)
                envs = make_vector_env(make, recipe.num_envs, actors=system, envs_per_actor=share)
                stack.enter_context(envs)
                if recipe.normalize:
                    gamma = getattr(recipe.loop, "gamma", getattr(agent.alg, "gamma", 0.99))
                    envs = NormalizeVector(envs, obs=trained.normalized, gamma=gamma)
                    normalization = envs if trained.normalized else None  # None if the agent needs no statistics
            watching: list[Callback] = []
            if videos is not None:
                in_video = partial(play, agent, trained, 1, seed=0, seen_through=normalization)
                watching.append(RecordVideo(run, agent, trained.make_env, videos, playing=in_video))
            watching += standard_callbacks(
                run,
                agent,
                title=f"{self.algorithm} on {self.env}, seed {self.seed}",
                goal=recipe.goal if self.goal is None else self.goal,
                max_steps=max_steps,
                steps="updates" if offline else "environment steps",
                normalization=normalization,
                progress=progress,
            )
            fewest = max(recipe.steps // 20, min(recipe.steps, FEWEST_UPDATES))
            every = recipe.evaluate_every or (fewest if offline else None)
            watched: dict[str, Any] = {
                "evaluator": lambda: play(
                    agent, trained, EPISODES_WHILE_TRAINING, seed=SEED_WHILE_TRAINING, seen_through=normalization
                ),
                "callbacks": [*watching, *callbacks],
                **({} if every is None else {"evaluate_every": every}),
                "checkpoints": _RecipeCheckpoints(run, self.checkpoint_every, describe, fresh_episodes=fresh_episodes),
                "seed": self.seed,
            }
            if novelty is not None:
                watched["novelty"] = novelty
            ended = self._loop(agent, trained, data if offline else envs, system, watched, actors)
        if not ended.evaluations:
            agent.save(run.path / trained.FILE, **({} if normalization is None else {"normalization": normalization}))
        return ended

    def _loop(
        self,
        agent: Any,
        trained: Trained,
        source: Any,
        system: ActorSystem | None,
        watched: Mapping[str, Any],
        actors: int | None,
    ) -> Ended:
        loop = self.recipe.loop
        if isinstance(loop, OfflineSettings):
            return train_offline(agent, source, loop, **watched)
        if isinstance(loop, ACTING_APART):
            if actors:
                loop = with_actors(loop, actors)
            make = partial(make_standard_env, self.env, self.module, training=True, options=self.env_options)
            like_it = partial(_in_actor, replace(trained, arguments={**trained.arguments, "device": "auto"}))
            if isinstance(loop, ActorLearnerSettings):
                return train_actor_learner(agent, like_it, make, loop, actors=system, **watched)
            memory = self._frames(agent, loop, loop.envs_per_group)
            return train_apex(agent, like_it, make, loop, actors=system, memory=memory, **watched)
        if isinstance(loop, OffPolicySettings):
            memory = self._frames(agent, loop, self.recipe.num_envs)
            return train_off_policy(agent, source, loop, memory=memory, **watched)
        return train_on_policy(agent, source, loop, **watched)

    def _novelty(self, trained: Trained) -> NoveltyReward | None:
        """Return the second reward of the recipe, or None."""
        options = self.recipe.novelty
        if options is None:
            return None
        env = trained.make_env()
        space = env.observation_space
        env.close()
        common = {name: trained.arguments[name] for name in ("device", "compile") if name in trained.arguments}
        return make_novelty(space, options, **common)

    def _frames(self, agent: Any, loop: OffPolicySettings | ApexSettings, turns: int) -> FrameReplayMemory | None:
        """Return a memory that has every frame of an Atari game once, not eight times.

        None where more than frames is observed, and where sequences are learned from.
        """
        if not is_atari(self.env) or self.env_options.get("previous_step") or agent.alg.remembers:
            return None
        drawn = {"n_step": loop.n_step, "gamma": agent.alg.gamma, "sampling": loop.prioritized}
        size = loop.memory_size + -loop.memory_size % turns
        return FrameReplayMemory(size, (4, 84, 84), n_envs=turns, seed=self.seed, **drawn)

    def write(self, folder: Path) -> None:
        """Write the description into a run's folder."""
        description = {
            "format": self.FORMAT,
            "version": self.VERSION,
            "written_by": f"parl-core {__version__}",
            **{name: plain(value) for name, value in vars(self).items() if name != "recipe"},
            "settings": self.settings(),
            "repeat_with": {"python": platform.python_version(), "versions": _versions(self.backend), **machine()},
        }
        write_json(folder / self.FILE, description)

    @classmethod
    def read(cls, folder: Path) -> "RecipeRun":
        """Read the description from a run's folder.

        Raises:
            CheckpointError: There is no description, the file is not one, a newer PARL wrote it, or the recipe has
                changed since.
        """
        path = folder / cls.FILE
        try:
            values = json.loads(path.read_text())
            if values["format"] != cls.FORMAT:
                raise ValueError(f"its format is {values['format']!r}")
            if values["version"] > cls.VERSION:
                raise CheckpointError(
                    f"{path} has version {values['version']}, written by {values.get('written_by')}; this is parl-core "
                    f"{__version__}, which reads versions up to {cls.VERSION}: pip install --upgrade parl-core"
                )
            found = cls(**{one.name: values[one.name] for one in fields(cls) if one.name in values})
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder} has no {cls.FILE}: it is not a run of `parl train`. A program's own run is resumed by the "
                "program, with Run.resume"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} does not describe a run: {error!r}") from error
        search_first(found.module_folder, folder)
        now = json.loads(json.dumps(found.settings()))
        # Settings that are newer than the run had their defaults; descriptions are no settings.
        before = {**_defaults(found.recipe), **values["settings"]}
        changed = sorted(name for name in {*now, *before} - _WORDS if now.get(name) != before.get(name))
        if changed:
            differences = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in changed)
            raise CheckpointError(
                f"the recipe of this run has changed since {values['written_by']}: {differences}. Resume it with that "
                "version, or train anew"
            )
        return found

    def settings(self) -> dict[str, Any]:
        """Return all hyper-parameters as JSON, a schedule as its stages."""
        own = self.recipe.as_json()
        return {**own.pop("loop"), **own}

    def refuse_fewer_steps(self, folder: Path) -> None:
        """Refuse to end a run that has taken more than the requested steps, and has others left of its own budget.

        Raises:
            HyperparameterError: It is such a run.
            CheckpointError: Its description cannot be read.
        """
        taken = max(CheckpointStore(folder / "checkpoints").steps(), default=0)
        if taken >= self.total_steps and (budget := RecipeRun.read(folder).total_steps) > taken:
            raise HyperparameterError(
                f"the run in {folder} has taken {taken} of {budget} steps, and {self.total_steps} were asked for: "
                f"resume it without --steps to take all {budget}"
            )

    def _check_resumable(self, folder: Path) -> None:
        store = CheckpointStore(folder / "checkpoints")
        taken = store.steps()
        if not taken:  # told before actors start, which takes seconds
            damaged = ", ".join(sorted(path.name for path in store.folder.glob("damaged-*")))
            why = f"has damaged checkpoints only ({damaged})" if damaged else "ended before its first checkpoint"
            raise CheckpointError(
                f"the run in {folder} {why}, so there is nothing to go on with; begin anew with its settings: "
                f"parl train --config {quote(str(folder))}"
            )
        self.refuse_fewer_steps(folder)
        if taken[-1] >= self.total_steps and has_ended(folder):  # else it was stopped while it wrote its last files
            raise HyperparameterError(
                f"the run in {folder} has taken {taken[-1]} steps, and {self.total_steps} were asked for: continue "
                f"with parl resume {quote(str(folder))} --steps {2 * taken[-1]}"
            )


def has_ended(folder: Path) -> bool:
    """Return whether a run has ended by itself and has written its last files, as its log says in the last line."""
    if not (folder / JsonLines.NAME).exists():
        return False
    return read_run(folder).stop in (Stop.BUDGET.name.lower(), Stop.CALLBACK.name.lower())


class _RecipeCheckpoints(Checkpoints):
    """Checkpoints of a run that is described after its parts were checked, so that an invalid run has no
    folder.

    Args:
        run: The run of the checkpoints.
        every: Steps between two of them.
        describe: The function that writes the description into the run's folder.
        options: The options of `Checkpoints`.
    """

    def __init__(self, run: Run, every: int, describe: Callable[[], None], **options: Any) -> None:
        super().__init__(run, every, **options)
        self._describe = describe

    def keep(self, parts: LoopParts) -> Mapping[str, Any] | None:
        """Register the parts, restore those of a resumed run, and describe it."""
        saved = super().keep(parts)
        self._describe()
        return saved

    def _way_to_the_cpu(self) -> str:
        return f"type parl resume {quote(str(self._run.path))} --device cpu"


_WORDS = {"source", "deviations"}


def _defaults(recipe: Recipe) -> dict[str, Any]:
    """Return the defaults of a recipe and of its loop, as JSON has them."""
    found = {}
    for settings in (recipe.loop, recipe):
        for one in fields(settings):
            if one.default is not MISSING:
                found[one.name] = plain(one.default)
            elif one.default_factory is not MISSING:
                found[one.name] = plain(one.default_factory())
    return dict(json.loads(json.dumps(found)))


def preset(algorithm: str, env: str, module: str = "", options: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe from which the command starts: its network is that of the environment's spaces.

    Args:
        algorithm: Name of its class.
        env: The registered id.
        module: A module that is imported first.
        options: The options of the environment.

    Raises:
        HyperparameterError: There is no recipe.
        ImportError: The module is missing.
    """
    if module:
        import_named(module)
    asked = StandardEnv(env, options or {})
    recipe = find_recipe(algorithm, env, lambda: asked.kind_by_actions)
    if isinstance(recipe.loop, EpisodeSettings):  # for the QuickStart's own loop, which has no checkpoints
        recipe = find_recipe(algorithm, asked.kind_by_actions)
    kept = {name: value for name, value in recipe.sizes.items() if name in _OPTIONS}
    if (
        isinstance(recipe.loop, OffPolicySettings)
        and (algorithm, env) not in RECIPES
        and recipe.loop.hindsight is None
        and recipe.loop.n_step == 1
        and recipe.loop.prioritized is None  # hindsight computes rewards of single steps that are drawn uniformly
        and asked.has_goals
    ):
        recipe = replace(recipe, loop=replace(recipe.loop, hindsight=0.8))
    if recipe.environment:  # the module of a benchmark; here the environment is Gymnasium's
        recipe = replace(recipe, environment="", network="", sizes=kept)
    if model_kind(algorithm) is not None and "hidden" not in recipe.sizes:
        recipe = replace(recipe, network="", sizes=kept)
    return recipe


def with_actors(loop: ActorLearnerSettings | ApexSettings, actors: int) -> ActorLearnerSettings | ApexSettings:
    """Return the settings with another number of actors; groups become a multiple of it."""
    groups = None if loop.groups is None else loop.groups + -loop.groups % actors
    return replace(loop, n_actors=actors, groups=groups)


def play(
    agent: Any,
    trained: Trained,
    episodes: int,
    *,
    seed: int,
    max_steps: int = 100_000,
    stochastic: bool = False,
    seen_through: Any = None,
    make_env: Callable[[], Any] | None = None,
) -> Evaluation:
    """Play episodes of a recipe's environment.

    Args:
        agent: The agent that plays.
        trained: The description of the agent.
        episodes: The number of episodes.
        seed: The seed of the episodes.
        max_steps: The largest number of steps of one episode; see `evaluate`.
        stochastic: Whether actions are those of exploration, not the best ones.
        seen_through: The `NormalizeVector` of training, whose statistics normalise the observations.
        make_env: The function that makes the environments; default: `trained.make_env`.

    Raises:
        HyperparameterError: A DecisionTransformer has no exploration.
    """
    made = make_env or trained.make_env

    def make() -> Any:
        return made() if seen_through is None else seen_through.as_seen(made())

    if trained.target_return is not None:
        if stochastic:
            raise HyperparameterError("a DecisionTransformer has no stochastic actions")
        wanted = trained.target_return
        return evaluate_with_target_return(agent, make, wanted, episodes, seed=seed, max_steps=max_steps)
    return evaluate(agent, make, episodes, seed=seed, max_steps=max_steps, stochastic=stochastic)


def check_rendering(trained: Trained, mode: str) -> None:
    """Make the environment and render it once, to detect missing packages before a long run begins.

    Args:
        trained: The description of the agent; its environment is made.
        mode: `"human"` for a window, `"rgb_array"` for videos.

    Raises:
        ImportError: A package is missing; the message names the package to install.
        HyperparameterError: The environment does not support the mode, or there is no display.
    """
    if mode == "human" and sys.platform.startswith("linux"):
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("SDL_VIDEODRIVER")):
            raise HyperparameterError("there is no display for a window (DISPLAY is not set): use --video FILE.mp4")
    if mode == "rgb_array" and find_spec("moviepy") is None:
        raise ImportError('videos are written by moviepy: pip install "parl-core[video]"')
    env = trained.make_env()
    known = list((env.metadata or {}).get("render_modes", ()))
    env.close()
    if mode not in known:
        raise HyperparameterError(f"{trained.env} has no {mode} pictures; it has {', '.join(known) or 'none'}")
    env = trained.make_env(mode)
    try:
        env.reset(seed=0)
        env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"{trained.env} cannot be shown: {error}") from error
    finally:
        env.close()


def _actors_of(recipe: Recipe, actors: int | None, cluster: str) -> ActorSystem | None:
    """Open the actor system of the environments; processes by default if the loop's actors are part of it."""
    if isinstance(recipe.loop, OfflineSettings):
        if actors or cluster:
            raise HyperparameterError(
                "learning from logged data steps no environments: leave out --actors and --cluster"
            )
        return None
    count = actors
    if count is None:
        count = recipe.loop.n_actors if isinstance(recipe.loop, ACTING_APART) else 0
    try:
        return choose_actors(count, cluster)
    except ImportError:
        if actors is not None or cluster:
            raise
        return open_actors("subprocess", processes=count)


def _envs_per_actor(num_envs: int, actors: int | None, cluster: str) -> int | None:
    """Return the number of environments of an actor; by default one on a cluster, whose slots are unknown."""
    if actors:
        return math.ceil(num_envs / actors)
    return 1 if cluster else None


def _in_actor(trained: Trained) -> Any:
    backends.set_backend(trained.backend)
    return trained.make_agent()


def _versions(backend: str) -> dict[str, str]:
    found = {}
    for package in (
        "parl-core",
        f"parl-{backend}",
        _FRAMEWORKS.get(backend, backend),
        "parl-remote",
        "numpy",
        "gymnasium",
    ):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _within(recipe: Recipe, steps: int, given: Collection[str]) -> Recipe:
    """Return the recipe with another budget; a first rollout of more steps is shortened, unless its size was given."""
    steps = max(steps, 2)  # the advantage of a single row cannot be normalised
    num_envs = recipe.num_envs if "num_envs" in given else min(recipe.num_envs, steps)
    n_steps = recipe.loop.n_steps if "n_steps" in given else min(recipe.loop.n_steps, math.ceil(steps / num_envs))
    total = n_steps * num_envs if n_steps < recipe.loop.n_steps else steps
    return replace(recipe, num_envs=num_envs, loop=replace(recipe.loop, n_steps=n_steps, total_steps=total))
