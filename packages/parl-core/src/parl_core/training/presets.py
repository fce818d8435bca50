"""Presets: hyper-parameters that are known to work, by algorithm and environment, with their source, and their runs.

A run writes what was asked for to `run.json`, so that it can be taken up again later:

    request ──> PresetRun.train(run) ──> run.json, agent.json, checkpoints/, best.ckpt, tables
                    ^── PresetRun.read(folder) ──> train(run, ...) once more, with Run.resume(folder)
"""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from parl_core._version import __version__
from parl_core.actors import open_actors
from parl_core.atomic_write import write_json
from parl_core.checkpoint import CheckpointStore
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.schedules import linear
from parl_core.training.acting import PredictingAgent
from parl_core.training.callbacks import standard_callbacks
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import RecordVideo, evaluate
from parl_core.training.events import Callback, Ended, Evaluation
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.run import Run
from parl_core.training.trained import Trained, make_flat_env

__all__ = [
    "OFF_POLICY_PRESETS",
    "PPO_PRESETS",
    "OffPolicyPreset",
    "OnPolicyPreset",
    "PresetRun",
    "off_policy_preset",
    "play",
]

# Evaluations while training have seeds that those of `parl evaluate` do not share.
SEED_WHILE_TRAINING = 2**31

EPISODES_WHILE_TRAINING = 20


@dataclass(frozen=True)
class OnPolicyPreset:
    """The settings of a run besides the environment and a seed.

    Attributes:
        loop: settings of the loop.
        algorithm: arguments of the algorithm's constructor.
        num_envs: environments that are stepped together.
        hidden: sizes of the hidden layers (tanh) of policy and value network each.
        goal: mean return of an evaluation that counts as solved; None when there is no agreed one.
    """

    loop: OnPolicySettings = field(default_factory=lambda: OnPolicySettings(lr=3e-4, clip=0.2, entropy_coef=0.0))
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 8
    hidden: tuple[int, ...] = (64, 64)
    goal: float | None = None


PPO_PRESETS: Mapping[str, OnPolicyPreset] = MappingProxyType(
    {
        # RL Baselines3 Zoo, hyperparams/ppo.yml. Its vf_coef 0.5 weighs the squared error, our value_loss_coef half of
        # it; its value function is not clipped. Goal: Gymnasium's reward threshold.
        "CartPole-v1": OnPolicyPreset(
            OnPolicySettings(
                total_steps=100_000,
                n_steps=32,
                epochs=20,
                minibatch_size=256,
                gamma=0.98,
                gae_lambda=0.8,
                lr=1e-3,
                clip=0.2,
                decay=True,
                entropy_coef=0.0,
            ),
            {"value_loss_coef": 1.0, "use_clipped_value_loss": False},
            goal=475.0,
        ),
    }
)


@dataclass(frozen=True)
class OffPolicyPreset:
    """The settings of a run besides the environment and a seed.

    Attributes:
        loop: settings of the loop.
        algorithm: arguments of the algorithm's constructor.
        num_envs: environments that are stepped together.
        hidden: sizes of the hidden layers (ReLU) of each network.
        goal: mean return of an evaluation that counts as solved; None when there is no agreed one.
        evaluate_every: environment steps between evaluations.
    """

    loop: OffPolicySettings = field(default_factory=OffPolicySettings)
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    hidden: tuple[int, ...] = (256, 256)
    goal: float | None = None
    evaluate_every: int = 5_000


def _epsilon(final: float, steps: int) -> dict[str, Any]:
    return {"epsilon": linear(1.0, final, steps)}


def _box2d_dqn(goal: float) -> OffPolicyPreset:
    # RL Baselines3 Zoo, hyperparams/dqn.yml; goal: Gymnasium's reward threshold.
    loop = OffPolicySettings(
        total_steps=100_000,
        learning_starts=128,
        train_every=4,
        gradient_steps=4,
        batch_size=128,
        memory_size=50_000,
        exploration=_epsilon(0.1, 12_000),
    )
    return OffPolicyPreset(loop, {"gamma": 0.99, "lr": 6.3e-4, "sync_every": 250}, goal=goal)


def _pendulum(learning_starts: int, **exploration: float) -> OffPolicySettings:
    return OffPolicySettings(
        total_steps=20_000, learning_starts=learning_starts, memory_size=200_000, exploration=exploration
    )


# RL Baselines3 Zoo, hyperparams/td3.yml and ddpg.yml; there the first 10,000 steps are random, and layers 400 and 300.
_DETERMINISTIC_PENDULUM = OffPolicyPreset(
    _pendulum(1_000, noise=0.1),
    {"gamma": 0.98, "actor_lr": 1e-3, "critic_lr": 1e-3},
    goal=-200.0,
    evaluate_every=1_000,
)

OFF_POLICY_PRESETS: Mapping[str, Mapping[str, OffPolicyPreset]] = MappingProxyType(
    {
        "DQN": {
            # RL Baselines3 Zoo, hyperparams/dqn.yml. Its target is copied every 10 steps, that is before each phase of
            # 128 updates. Goal: Gymnasium's reward threshold.
            "CartPole-v1": OffPolicyPreset(
                OffPolicySettings(
                    total_steps=50_000,
                    learning_starts=1_000,
                    train_every=256,
                    gradient_steps=128,
                    batch_size=64,
                    memory_size=100_000,
                    exploration=_epsilon(0.04, 8_000),
                ),
                {"gamma": 0.99, "lr": 2.3e-3, "sync_every": 128},
                goal=475.0,
                evaluate_every=2_000,
            ),
            "Acrobot-v1": _box2d_dqn(goal=-100.0),
            "LunarLander-v3": _box2d_dqn(goal=200.0),
        },
        "DDPG": {"Pendulum-v1": _DETERMINISTIC_PENDULUM},
        "TD3": {"Pendulum-v1": _DETERMINISTIC_PENDULUM},
        # RL Baselines3 Zoo, hyperparams/sac.yml.
        "SAC": {
            "Pendulum-v1": OffPolicyPreset(
                _pendulum(100), {"actor_lr": 1e-3, "critic_lr": 1e-3}, goal=-200.0, evaluate_every=1_000
            )
        },
        "OAC": {
            "Pendulum-v1": OffPolicyPreset(
                _pendulum(100), {"actor_lr": 1e-3, "critic_lr": 1e-3}, goal=-200.0, evaluate_every=1_000
            )
        },
    }
)

# For environments without a preset: of DQN those of Stable-Baselines3 for small networks, of the others their papers'.
_OTHERWISE: Mapping[str, OffPolicyPreset] = MappingProxyType(
    {
        "DQN": OffPolicyPreset(
            OffPolicySettings(
                total_steps=500_000,
                learning_starts=1_000,
                train_every=4,
                batch_size=64,
                memory_size=100_000,
                exploration=_epsilon(0.05, 50_000),
            ),
            {"lr": 5e-4, "sync_every": 500},
        ),
        "DDPG": OffPolicyPreset(OffPolicySettings(learning_starts=10_000, exploration={"noise": 0.1})),
        "TD3": OffPolicyPreset(OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1})),
        "SAC": OffPolicyPreset(OffPolicySettings(learning_starts=10_000)),
        "OAC": OffPolicyPreset(OffPolicySettings(learning_starts=10_000)),
    }
)


def off_policy_preset(algorithm: str, env: str) -> OffPolicyPreset:
    """Return the preset of an algorithm (`"DQN"`) for an environment, or the one for environments that have none."""
    return OFF_POLICY_PRESETS[algorithm].get(env, _OTHERWISE[algorithm])


@dataclass(frozen=True)
class PresetRun:
    """The request for one run of a preset.

    Attributes:
        algorithm: name of its class.
        env: registered id of the environment.
        backend: `torch` or `paddle`.
        seed: of weights, environments and sampling.
        steps: environment steps; None: the preset's. Rollouts of more are shortened, the last of several is completed.
        goal: stop when two evaluations in a row reach it; None: the preset's.
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
    def preset(self) -> OnPolicyPreset | OffPolicyPreset:
        """The hyper-parameters, with the steps that were asked for."""
        if self.algorithm == "PPO":
            preset: Any = PPO_PRESETS.get(self.env, OnPolicyPreset())
        else:
            preset = off_policy_preset(self.algorithm, self.env)
        if self.steps is None:
            changed: OnPolicyPreset | OffPolicyPreset = preset
        elif isinstance(preset, OnPolicyPreset):
            changed = _within(preset, self.steps)
        else:
            changed = dataclasses.replace(preset, loop=preset.loop.with_total_steps(self.steps))
        return changed

    @property
    def total_steps(self) -> int:
        """Environment steps at most."""
        return self.preset.loop.total_steps if self.extended_to is None else self.extended_to

    def extended(self, steps: int) -> "PresetRun":
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
        preset = self.preset
        trained = Trained(self.algorithm, self.env, self.backend, preset.hidden, dict(preset.algorithm), self.seed)
        agent = trained.make_agent()
        trained.write(run.path)
        self.write(run.path)
        run.how_to_resume = f"parl resume {run.path}"
        goal = preset.goal if self.goal is None else self.goal
        title = f"{self.algorithm} on {self.env}, seed {self.seed}"
        callbacks: list[Callback] = []
        if videos is not None:
            callbacks.append(RecordVideo(run, agent, make_flat_env, videos, env_kwargs={"env_id": self.env}))
        callbacks += standard_callbacks(run, agent, title=title, goal=goal, max_steps=max_steps)
        watched: dict[str, Any] = {
            "evaluator": lambda: play(agent, self.env, EPISODES_WHILE_TRAINING, seed=SEED_WHILE_TRAINING),
            "callbacks": callbacks,
            "checkpoints": Checkpoints(run, self.checkpoint_every, fresh_episodes=fresh_episodes),
            "seed": self.seed,
        }
        with ExitStack() as stack:
            system = stack.enter_context(open_actors("remote", cpu_num=actors) if actors else open_actors())
            kwargs = {"env_id": self.env}
            envs = make_vector_env(make_flat_env, preset.num_envs, env_kwargs=kwargs, actors=system)
            stack.enter_context(envs)
            if isinstance(preset, OffPolicyPreset):
                off = dataclasses.replace(preset.loop, total_steps=self.total_steps)
                ended = train_off_policy(agent, envs, off, evaluate_every=preset.evaluate_every, **watched)
            else:
                on = dataclasses.replace(preset.loop, total_steps=self.total_steps)
                ended = train_on_policy(agent, envs, on, **watched)
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
    def read(cls, folder: Path) -> "PresetRun":
        """Read the description from a run's folder.

        Raises:
            CheckpointError: there is none, it is none, a newer PARL wrote it, or the preset is another one by now.
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
                f"the preset of this run has changed since {values['written_by']}: {told}. Resume it with that "
                "version, or train anew"
            )
        return found

    def settings(self) -> dict[str, Any]:
        """Return all hyper-parameters as JSON has them; of a schedule its values along the way."""
        preset = self.preset
        total = preset.loop.total_steps
        own = {field.name: getattr(preset, field.name) for field in dataclasses.fields(preset) if field.name != "loop"}
        loop = {field.name: getattr(preset.loop, field.name) for field in dataclasses.fields(preset.loop)}
        described: dict[str, Any] = _plain({**own, **loop}, total)
        return described

    def _check_what_is_left(self, folder: Path) -> None:
        taken = CheckpointStore(folder / "checkpoints").steps()
        if taken and taken[-1] >= self.total_steps:
            raise HyperparameterError(
                f"the run in {folder} has taken all of its {self.total_steps} steps: go on with "
                f"parl resume {folder} --steps {2 * self.total_steps}"
            )


def play(agent: PredictingAgent, env: str, episodes: int, *, seed: int, max_steps: int = 100_000) -> Evaluation:
    """Play episodes of a preset's environment.

    Args:
        agent: plays.
        env: registered id.
        episodes: how many.
        seed: of the episodes.
        max_steps: of one episode; see `evaluate`.
    """
    return evaluate(agent, make_flat_env, episodes, seed=seed, env_kwargs={"env_id": env}, max_steps=max_steps)


def _within(preset: OnPolicyPreset, steps: int) -> OnPolicyPreset:
    """Return the preset with another budget, which one rollout does not exceed; the last of several is completed."""
    num_envs = min(preset.num_envs, steps)
    n_steps = min(preset.loop.n_steps, steps // num_envs)
    total = n_steps * num_envs if n_steps < preset.loop.n_steps else steps
    return dataclasses.replace(
        preset, num_envs=num_envs, loop=dataclasses.replace(preset.loop, n_steps=n_steps, total_steps=total)
    )


def _plain(value: Any, total_steps: int) -> Any:
    if callable(value):
        return [value(total_steps * quarter / 4) for quarter in range(5)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(part, total_steps) for name, part in value.items()}
    return list(value) if isinstance(value, tuple) else value
