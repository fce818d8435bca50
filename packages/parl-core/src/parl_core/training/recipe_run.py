"""Runs of `parl train`: a recipe on an environment, in a folder.

A run writes what was asked for to `run.json`, so that it can be taken up again later:

    request ──> RecipeRun.train(run) ──> run.json, agent.json, checkpoints/, best.ckpt, tables
                    ^── RecipeRun.read(folder) ──> train(run, ...) once more, with Run.resume(folder)
"""

import dataclasses
import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from parl_core._version import __version__
from parl_core.actors import open_actors
from parl_core.atomic_write import write_json
from parl_core.checkpoint import CheckpointStore
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.training.acting import PredictingAgent
from parl_core.training.callbacks import standard_callbacks
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import RecordVideo, evaluate
from parl_core.training.events import Callback, Ended, Evaluation
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.recipes import Recipe, find_recipe
from parl_core.training.run import Run
from parl_core.training.trained import StandardEnv, Trained, make_flat_env

__all__ = ["RecipeRun", "play"]

# Evaluations while training have seeds that those of `parl evaluate` do not share.
SEED_WHILE_TRAINING = 2**31

EPISODES_WHILE_TRAINING = 20


@dataclass(frozen=True)
class RecipeRun:
    """The request for one run of a recipe.

    Attributes:
        algorithm: name of its class.
        env: registered id of the environment.
        backend: `torch` or `paddle`.
        seed: of weights, environments and sampling.
        steps: environment steps; None: the recipe's. Rollouts of more are shortened, the last of several is completed.
        goal: stop when two evaluations in a row reach it; None: the recipe's.
        checkpoint_every: steps between two checkpoints.
        extended_to: environment steps at most since it was resumed with more; None: `steps`.
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

    @property
    def recipe(self) -> Recipe:
        """The hyper-parameters, with the steps that were asked for.

        Raises:
            HyperparameterError: there are none, or they are for another program than this one.
        """
        recipe = find_recipe(self.algorithm, self.env, lambda: StandardEnv(self.env).kind_by_actions)
        standard = isinstance(recipe.loop, (OnPolicySettings, OffPolicySettings)) and "hidden" in recipe.sizes
        if recipe.normalize or not standard:
            program = f"examples/{self.algorithm.lower()}/train.py --env {self.env}"
            raise HyperparameterError(
                f"the recipe of {self.algorithm} for {self.env} is for a program of its own, which normalises "
                f"observations, has actors or another network: {program}"
            )
        if self.steps is None:
            return recipe
        return (
            _within(recipe, self.steps) if isinstance(recipe.loop, OnPolicySettings) else recipe.with_steps(self.steps)
        )

    @property
    def total_steps(self) -> int:
        """Environment steps at most."""
        return self.recipe.loop.total_steps if self.extended_to is None else self.extended_to

    def extended(self, steps: int) -> "RecipeRun":
        """Return the same run with another budget; schedules that go over the whole budget are stretched."""
        return dataclasses.replace(self, extended_to=steps)

    def train(
        self,
        run: Run,
        *,
        actors: int = 0,
        max_steps: int | None = None,
        videos: int | None = None,
        fresh_episodes: bool = False,
    ) -> Ended:
        """Train in a run's folder, or go on where a resumed run stopped.

        Args:
            run: a new one, or one of `Run.resume`.
            actors: remote actors for the environments; 0: this process. Results do not depend on it.
            max_steps: stop there for now.
            videos: record a video after every so many evaluations; None: none.
            fresh_episodes: see `Checkpoints`.

        Raises:
            HyperparameterError: there is nothing left to do.
            CheckpointError: the run cannot be resumed, or a checkpoint cannot be written.
        """
        if run.resumed:
            self._check_what_is_left(run.path)
        recipe = self.recipe
        hidden = tuple(recipe.sizes["hidden"])
        trained = Trained(self.algorithm, self.env, self.backend, hidden, dict(recipe.algorithm), self.seed)
        agent = trained.make_agent()
        trained.write(run.path)
        self.write(run.path)
        run.how_to_resume = f"parl resume {run.path}"
        goal = recipe.goal if self.goal is None else self.goal
        title = f"{self.algorithm} on {self.env}, seed {self.seed}"
        callbacks: list[Callback] = []
        if videos is not None:
            callbacks.append(RecordVideo(run, agent, make_flat_env, videos, env_kwargs={"env_id": self.env}))
        callbacks += standard_callbacks(run, agent, title=title, goal=goal, max_steps=max_steps)
        watched: dict[str, Any] = {
            "evaluator": lambda: play(agent, self.env, EPISODES_WHILE_TRAINING, seed=SEED_WHILE_TRAINING),
            "callbacks": callbacks,
            **({} if recipe.evaluate_every is None else {"evaluate_every": recipe.evaluate_every}),
            "checkpoints": Checkpoints(run, self.checkpoint_every, fresh_episodes=fresh_episodes),
            "seed": self.seed,
        }
        with ExitStack() as stack:
            system = stack.enter_context(open_actors("remote", cpu_num=actors) if actors else open_actors())
            kwargs = {"env_id": self.env}
            envs = make_vector_env(make_flat_env, recipe.num_envs, env_kwargs=kwargs, actors=system)
            stack.enter_context(envs)
            loop = dataclasses.replace(recipe.loop, total_steps=self.total_steps)
            train: Any = train_off_policy if isinstance(loop, OffPolicySettings) else train_on_policy
            ended: Ended = train(agent, envs, loop, **watched)
        if not ended.evaluations:
            agent.save(run.path / trained.FILE)
        return ended

    def write(self, folder: Path) -> None:
        """Write the description into a run's folder."""
        description = {
            "format": self.FORMAT,
            "version": self.VERSION,
            "written_by": f"parl-core {__version__}",
            **dataclasses.asdict(self),
            "settings": self.settings(),
        }
        write_json(folder / self.FILE, description)

    @classmethod
    def read(cls, folder: Path) -> "RecipeRun":
        """Read the description from a run's folder.

        Raises:
            CheckpointError: there is none, it is none, a newer PARL wrote it, or the recipe is another one by now.
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
            found = cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder} has no {cls.FILE}: it is no run of `parl train`. A program's own run is resumed by the "
                "program, with Run.resume"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} does not describe a run: {error!r}") from error
        now = json.loads(json.dumps(found.settings()))
        before = values["settings"]
        changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
        if changed:
            told = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in changed)
            raise CheckpointError(
                f"the recipe of this run has changed since {values['written_by']}: {told}. Resume it with that "
                "version, or train anew"
            )
        return found

    def settings(self) -> dict[str, Any]:
        """Return all hyper-parameters as JSON has them; of a schedule its stages."""
        own = self.recipe.as_json()
        return {**own.pop("loop"), **own}

    def _check_what_is_left(self, folder: Path) -> None:
        taken = CheckpointStore(folder / "checkpoints").steps()
        if taken and taken[-1] >= self.total_steps:
            raise HyperparameterError(
                f"the run in {folder} has taken all of its {self.total_steps} steps: go on with "
                f"parl resume {folder} --steps {2 * self.total_steps}"
            )


def play(agent: PredictingAgent, env: str, episodes: int, *, seed: int, max_steps: int = 100_000) -> Evaluation:
    """Play episodes of a recipe's environment.

    Args:
        agent: plays.
        env: registered id.
        episodes: how many.
        seed: of the episodes.
        max_steps: of one episode; see `evaluate`.
    """
    return evaluate(agent, make_flat_env, episodes, seed=seed, env_kwargs={"env_id": env}, max_steps=max_steps)


def _within(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with another budget, which one rollout does not exceed; the last of several is completed."""
    num_envs = min(recipe.num_envs, steps)
    n_steps = min(recipe.loop.n_steps, steps // num_envs)
    total = n_steps * num_envs if n_steps < recipe.loop.n_steps else steps
    return dataclasses.replace(
        recipe, num_envs=num_envs, loop=dataclasses.replace(recipe.loop, n_steps=n_steps, total_steps=total)
    )
