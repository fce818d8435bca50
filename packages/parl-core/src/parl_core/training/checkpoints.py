"""Checkpoints of a running loop: their contents, when they are written, and how a run continues from one.

    with Run("sac-pendulum") as run:                        # later: with Run.resume("runs/sac-pendulum-...") as run:
        train_off_policy(agent, envs, settings, checkpoints=Checkpoints(run, every=10_000), seed=0)

A run that was stopped in any way and resumed by the same program has the same weights and figures to the last
bit as the run that was never stopped, on the same machine with the same versions (within the limits of a GPU and of
several remote machines). The environments of a checkpoint are one of:

    exact    every environment's episode is recorded and continued (`parl_core.env._recorded`); a checkpoint does not
             change the run. For vectors of `make_vector_env`, also inside of `NormalizeVector`.
    reset    at every checkpoint all environments are reset, with seeds that follow from the run's seed and the step,
             and the episodes that were running are cut: a run that was stopped and one that was not do the same. For
             other vectors, which do not return their state, and for environments that are not repeatable.

`parl_core.checkpoint` describes the files.
"""

import errno
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.vector import VectorWrapper

from parl_core import backends, logger
from parl_core._attached_state import StateAccessor, accessor_of, changed_values, decode, encode, values_of
from parl_core.checkpoint import Checkpoint, CheckpointStore, Journal, Journaled
from parl_core.checks import check_int
from parl_core.env._recorded import put_statistics, put_statistics_inside, statistics_inside, statistics_of
from parl_core.env.autoreset import SameStep
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.schedules import LinearDecayScheduler, PiecewiseScheduler
from parl_core.seeding import spawn_seeds
from parl_core.training.run import Run

__all__ = [
    "Checkpoints",
    "Collector",
    "EnvironmentRule",
    "HasState",
    "LoopParts",
    "SavedAgent",
    "SavedEnvironments",
    "get_random_state",
    "set_random_state",
]


EnvironmentRule = Literal["auto", "exact", "reset"]
"""Treatment of environments: `exact` saves their state, `reset` begins new episodes, `auto` saves if possible."""


class HasState(Protocol):
    """A part of a loop whose state is saved and restored."""

    def get_state(self) -> Any:
        """Return the state for a checkpoint: see `parl_core.checkpoint`."""

    def set_state(self, state: Any, /) -> None:
        """Continue from that state."""


class Collector(HasState, Protocol):
    """Steps the environments of a loop."""

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""


class SavedAgent(Protocol):
    """An agent of a checkpoint; its `rng` (a generator) and `BACKEND`, if it has them, belong to its state."""

    def save(self, path: Any, /) -> Any: ...

    def restore(self, path: Any, /) -> Any: ...


@dataclass(frozen=True)
class LoopParts:
    """The parts of a loop that a checkpoint holds.

    Attributes:
        agent: The agent that learns.
        collector: The object that steps the environments; None without environments.
        memory: The replay memory, or None.
        others: Other parts by name: generators, and objects with `get_state` and `set_state`.
    """

    agent: SavedAgent
    collector: Collector | None = None
    memory: Journaled | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints:
    """Decides when a loop writes a checkpoint, and restores a resumed run from its newest one.

    Args:
        run: The run; its folder has the checkpoints in `checkpoints/`, and `Run.resume(...)` continues it.
        every: Steps (in an offline loop: updates) between two checkpoints; another one is written at the end.
        keep: Number of checkpoints to keep.
        environments: `"exact"`, `"reset"`, or `"auto"`: see `parl_core.training.checkpoints`.
        fresh_episodes: Whether a run is resumed with new episodes if the old ones cannot be continued.

    Raises:
        HyperparameterError: A number is out of its range.
    """

    def __init__(
        self,
        run: Run,
        every: int = 10_000,
        *,
        keep: int = 2,
        environments: EnvironmentRule = "auto",
        fresh_episodes: bool = False,
    ) -> None:
        self.every = check_int("every", every)
        self._run, self._keep = run, check_int("keep", keep)
        self._rule: EnvironmentRule = environments
        self._fresh = fresh_episodes
        self._environments: SavedEnvironments | None = None
        self._parts: LoopParts | None = None
        self._first_values: Mapping[str, Any] = {}
        self._opened: tuple[CheckpointStore, Journal] | None = None
        self._written: int | None = None

    def watch(self, envs: Any, seed: int | None) -> None:
        """Record the episodes of a vector of environments from its first reset on, if that is possible.

        Raises:
            HyperparameterError: The environments cannot be saved in the required way.
        """
        self._environments = SavedEnvironments(envs, self._rule, seed)

    def watch_no_environments(self, why: str) -> None:
        """Record that a resumed loop starts new episodes, and the reason.

        Raises:
            HyperparameterError: The rule is `"exact"`.
        """
        if self._rule == "exact":
            raise HyperparameterError(f'environments="exact" is not possible here: {why}')

    def keep(self, parts: LoopParts) -> Mapping[str, Any] | None:
        """Register the parts of a loop, and restore them if the run is a resumed one.

        Returns:
            The loop's own state that was passed to `save`; None in a new run.

        Raises:
            CheckpointError: A part cannot be saved, or the checkpoint cannot be used.
        """
        self._parts = parts
        self._first_values = _agent_values(parts.agent)
        for name in ("rows_since", "put_rows", "cut_episodes", "get_state", "set_state"):
            if parts.memory is not None and not hasattr(parts.memory, name):
                raise CheckpointError(
                    f"{type(parts.memory).__name__} cannot be part of a checkpoint: it has no {name}(); use "
                    "parl_core.replay.ReplayMemory or FrameReplayMemory, or give the memory the methods of "
                    "parl_core.checkpoint.Journaled"
                )
        if not self._run.resumed:
            return None
        store, journal = self._folders()
        checkpoint = store.read_latest(lambda found: journal.check(found.segments))
        if checkpoint is None:
            raise CheckpointError(
                f"{store.folder} holds no complete checkpoint: the run ended before the first one. Start a new run"
            )
        return self._restore(parts, checkpoint, journal)

    def set_agent(self, agent: SavedAgent) -> None:
        """Use another agent for the next checkpoints, if a program makes a new agent in the middle of its run.

        Raises:
            CheckpointError: No parts were registered; call `keep` first.
        """
        if self._parts is None:
            raise CheckpointError("there are no parts with an agent to replace: call keep(LoopParts(...)) first")
        self._parts = replace(self._parts, agent=agent)
        self._first_values = _agent_values(agent)

    def await_rounds(self, awaits: bool) -> None:
        """Defer Ctrl-C to the end of a round and its checkpoint, if one can be written there, or stop deferring it."""
        self._run.interruption.waits_for_round = awaits and self.exact

    def notice_interruption(self) -> None:
        """Record that the round has ended, so that Ctrl-C is not raised again while a checkpoint is written."""
        self._run.interruption.noticed()

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C was pressed in a round that had to end first."""
        return self._run.interruption.waits_for_round and self._run.interruption.happened

    @property
    def exact(self) -> bool:
        """Return whether a checkpoint can be written at any step without changing what follows."""
        return self._environments is None or self._environments.exact

    def save(self, step: int, loop: Callable[[], Mapping[str, Any]]) -> None:
        """Write a checkpoint, unless the one of this step exists.

        Args:
            step: Steps taken so far.
            loop: The function that returns the loop's own state, which `keep` returns in the resumed run.

        Raises:
            CheckpointError: It cannot be written; the message names the newest existing one and a remedy.
        """
        parts = self._parts
        if parts is None or step == self._written:
            return
        if not self.exact and parts.memory is not None:
            parts.memory.cut_episodes()
        # Outside the try block, because errors of environments and actors are not errors of the disk.
        collector_state = self._collector_state(parts)
        try:
            self._write(parts, step, loop(), collector_state)
        except OSError as error:
            raise CheckpointError(self._cannot_write(step, error)) from error
        self._written = step
        if not self.exact and self._environments is not None and parts.collector is not None:
            parts.collector.begin_again(self._environments.reset_seeds(step))

    def _collector_state(self, parts: LoopParts) -> dict[str, Any]:
        """Return the state of the collector, which may have to wait for the environments."""
        if self._environments is None or parts.collector is None:
            return {}
        return {"environments": self._environments.get_state(), "collector": parts.collector.get_state()}

    def _write(self, parts: LoopParts, step: int, loop: Mapping[str, Any], collector_state: Mapping[str, Any]) -> None:
        store, journal = self._folders()
        backend = str(getattr(parts.agent, "BACKEND", ""))
        state: dict[str, Any] = {
            "algorithm": _algorithm_of(parts.agent),
            "device": _device_of(parts.agent),
            "loop": dict(loop),
            "random": get_random_state(backend),
            "agent": _agent_state(parts.agent, self._first_values),
            "others": {name: _part_state(part) for name, part in parts.others.items()},
            **collector_state,
        }
        segments: list[str] = []
        if parts.memory is not None:
            state["memory"] = parts.memory.get_state()
            segments = journal.write(parts.memory)
        path = store.write(step, state, save_agent=parts.agent.save, backend=backend, segments=segments)
        if parts.memory is not None:
            journal.prune(store.needed_segments())
        self._run.saved(
            store.folder, f"checkpoint of step {step} ({path.name}); continue with: {self._run.how_to_resume}"
        )

    def _restore(self, parts: LoopParts, checkpoint: Checkpoint, journal: Journal) -> Mapping[str, Any]:
        state = checkpoint.state
        algorithm = _algorithm_of(parts.agent)
        saved = state.get("algorithm", algorithm)  # checkpoints of older versions lack it
        if saved != algorithm:
            raise CheckpointError(
                f"{checkpoint.path} is of a run with {saved}, and this agent has {algorithm}: resume the run with "
                f"{saved}; for the weights alone, start a new run and call agent.restore({str(checkpoint.agent)!r})"
            )
        self._compare_devices(parts.agent, state.get("device", ""), checkpoint)
        parts.agent.restore(checkpoint.agent)
        _restore_agent(parts.agent, state["agent"])
        if (parts.memory is not None) is not ("memory" in state):
            raise CheckpointError(
                f"{checkpoint.path} belongs to another kind of loop: only one of the two has a memory"
            )
        if parts.memory is not None:
            journal.read(parts.memory, state["memory"], checkpoint.segments)
        for name, part in parts.others.items():
            if name not in state["others"]:
                raise CheckpointError(f"{checkpoint.path} belongs to another kind of loop: it has no {name!r}")
            _restore_part(part, state["others"][name])
        new_episodes: list[int] = []
        if self._environments is not None and parts.collector is not None:
            if "environments" not in state:
                raise CheckpointError(f"{checkpoint.path} belongs to another kind of loop: it has no environments")
            goes_on = self._environments.set_state(state["environments"], fresh_episodes=self._fresh)
            parts.collector.set_state(state["collector"])
            if not goes_on:
                if state["environments"]["exact"] and parts.memory is not None:
                    journal.cut_episodes(parts.memory)
                new_episodes = self._environments.reset_seeds(checkpoint.step)
        backend = str(getattr(parts.agent, "BACKEND", ""))
        if not set_random_state(state["random"], backend):
            logger.warning(
                "%s was written on %s: on %s, other random numbers are drawn than the run would have drawn",
                checkpoint.path,
                checkpoint.backend,
                backend,
            )
        if new_episodes and parts.collector is not None:  # after the random state was set, from which resets may draw
            parts.collector.begin_again(new_episodes)
        self._written = checkpoint.step
        loop: Mapping[str, Any] = state["loop"]
        logger.info("Resumed from the checkpoint of step %d in %s", checkpoint.step, checkpoint.path.parent)
        return loop

    def _compare_devices(self, agent: SavedAgent, before: str, checkpoint: Checkpoint) -> None:
        """Raise an error if a run that had a GPU would continue on the CPU without a choice; log other changes."""
        now = _device_of(agent)
        if not now or not before or _kind_of(now) == _kind_of(before):
            return
        if now == "cpu" and not getattr(getattr(agent, "alg", None), "_device_chosen", True):
            raise CheckpointError(
                f"{checkpoint.path} is of a run on {before}, and no GPU was found here; to continue on the CPU, "
                f"{self._way_to_the_cpu()}"
            )
        logger.warning(
            "The run began on %s and continues on %s, which rounds differently and draws other random numbers",
            before,
            now,
        )

    def _way_to_the_cpu(self) -> str:
        """Return the instructions to continue a run without a chosen device on the CPU."""
        return 'put PARL_DEVICE=cpu before the command of the program, or give the algorithm device="cpu"'

    def _folders(self) -> tuple[CheckpointStore, Journal]:
        if self._opened is None:
            folder = self._run.path / "checkpoints"
            self._opened = CheckpointStore(folder, self._keep), Journal(folder / "replay")
        return self._opened

    def _cannot_write(self, step: int, error: OSError) -> str:
        store, _ = self._folders()
        steps = store.steps()
        left = f"The newest complete one is that of step {steps[-1]}" if steps else "There is no complete one yet"
        todo = "Free space on that disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Set that right"
        then = f", then continue with: {self._run.how_to_resume}" if steps else ", then start again"
        return (
            f"the checkpoint of step {step} could not be written to {store.folder}: {error.strerror or error}. "
            f"{left}; training stops here, so that only later progress is lost. {todo}{then}"
        )


def _algorithm_of(agent: Any) -> str:
    """Return the class name of the agent's algorithm; that of an agent without `alg` is its own."""
    return type(getattr(agent, "alg", agent)).__name__


def _device_of(agent: Any) -> str:
    """Return the device of an agent's algorithm in PyTorch's spelling; empty if it has none."""
    return str(getattr(getattr(agent, "alg", None), "device", "")).replace("gpu", "cuda", 1)


def _kind_of(device: str) -> str:
    return device.partition(":")[0]


def _agent_values(agent: Any) -> dict[str, Any]:
    """Return the numbers and arrays among an agent's attributes; an epsilon that it lowers itself is one."""
    return values_of(agent, lambda _: None)


def _agent_state(agent: Any, first: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    changed = changed_values(_agent_values(agent), first)
    held = {name: accessor.get() for name, accessor in _agent_accessors(agent).items()}
    tree = encode({"values": changed, "held": held}, "agent", arrays, lambda _: None)
    state: dict[str, Any] = {"attributes": {"tree": json.dumps(tree), "arrays": arrays}}
    if isinstance(getattr(agent, "rng", None), np.random.Generator):
        state["rng"] = agent.rng.bit_generator.state
    if hasattr(agent, "checkpoint_state"):
        state["own"] = agent.checkpoint_state()
    return state


def _agent_accessors(agent: Any) -> dict[str, StateAccessor]:
    """Return an agent's generators and counters by name, besides `rng` and those of its algorithm."""
    kinds = (np.random.Generator, np.random.RandomState, random.Random, PiecewiseScheduler, LinearDecayScheduler)
    held = {name: value for name, value in getattr(agent, "__dict__", {}).items() if isinstance(value, kinds)}
    accessors = {name: accessor_of(value) for name, value in held.items() if name != "rng"}
    return {name: accessor for name, accessor in accessors.items() if accessor is not None}


def _restore_agent(agent: Any, state: Mapping[str, Any]) -> None:
    if "attributes" in state:  # checkpoints of older versions lack it
        found = decode(json.loads(state["attributes"]["tree"]), state["attributes"]["arrays"], lambda array: array)
        for name, value in found["values"].items():
            setattr(agent, name, value)
        accessors = _agent_accessors(agent)
        for name, held in found["held"].items():
            if name in accessors:
                accessors[name].set(held)
    if "rng" in state and isinstance(getattr(agent, "rng", None), np.random.Generator):
        agent.rng.bit_generator.state = state["rng"]
    if "own" in state and hasattr(agent, "restore_checkpoint"):
        agent.restore_checkpoint(state["own"])


def _part_state(part: Any) -> Any:
    return part.bit_generator.state if isinstance(part, np.random.Generator) else part.get_state()


def _restore_part(part: Any, state: Any) -> None:
    if isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    else:
        part.set_state(state)


class SavedEnvironments:
    """Saves and restores one vector of environments. Make it before the first reset, because it records from then on.

    Args:
        envs: A vector environment, with any wrappers.
        rule: `"exact"`, `"reset"`, or `"auto"`: exact if possible.
        seed: Seed of the run; the seeds of resets follow from it.

    Raises:
        HyperparameterError: The rule is unknown, or it is `"exact"` and the environments cannot save their state.
    """

    def __init__(self, envs: Any, rule: EnvironmentRule, seed: int | None) -> None:
        if rule not in ("auto", "exact", "reset"):
            raise HyperparameterError(f'environments must be "auto", "exact" or "reset", got {rule!r}')
        self._envs = envs
        self._layers: list[Any] = []
        while isinstance(envs, VectorWrapper):
            self._layers.append(envs)
            envs = envs.env
        self._base = envs
        blocks = [layer for layer in (*self._layers, envs) if not self._can_save(layer)]
        if blocks and rule == "exact":
            raise HyperparameterError(
                f"{type(blocks[0]).__name__} does not give its state, so a run with it resumes exactly only with "
                'environments="reset"; or make the environments with make_vector_env'
            )
        self.exact = not blocks and rule != "reset"
        if blocks:
            logger.info("%s cannot save its state: every checkpoint begins new episodes", type(blocks[0]).__name__)
        self._root = int(np.random.SeedSequence(seed).generate_state(1)[0])
        if self.exact:
            self._base.record_episodes()

    def reset_seeds(self, step: int) -> list[int]:
        """Return the seeds of the environments for the reset at a checkpoint, one each."""
        sequence = np.random.SeedSequence((self._root, step))
        return spawn_seeds(int(sequence.generate_state(1)[0]), self._base.num_envs)

    def get_state(self) -> dict[str, Any]:
        """Return the state for `set_state`."""
        state: dict[str, Any] = {
            "exact": self.exact,
            "root": self._root,
            "layers": [statistics_of(layer) for layer in self._layers],
            "inside": statistics_inside(self._base),
        }
        if self.exact:
            state["base"] = self._base.get_state()
        return state

    def set_state(self, state: Mapping[str, Any], *, fresh_episodes: bool = False) -> bool:
        """Bring new environments to the position of the saved ones.

        Args:
            state: The result of `get_state`.
            fresh_episodes: Whether the episodes are not restored, only the state of wrappers that outlasts them.

        Returns:
            Whether the environments are in the middle of the saved episodes; else they have to be reset.

        Raises:
            CheckpointError: An environment did not reach its saved position.
        """
        self._root = int(state["root"])
        exact = bool(state["exact"]) and self.exact and not fresh_episodes
        if exact:
            self._base.set_state(state["base"])
        for layer, saved in zip(self._layers, state["layers"], strict=False):
            if saved is not None:
                put_statistics(layer, saved)
        if state.get("inside") is not None and not exact:  # checkpoints of older versions lack it
            put_statistics_inside(self._base, state["inside"])
        return exact

    def _can_save(self, layer: Any) -> bool:
        if layer is self._base:
            return hasattr(layer, "record_episodes")
        return isinstance(layer, SameStep) or hasattr(layer, "checkpoint_state")


def get_random_state(backend: str = "") -> dict[str, Any]:
    """Return the states of the global random generators: Python's, numpy's, and the framework's.

    Some libraries draw from them (a framework's dropout, a third party's environment), so a run continues exactly only
    if they continue as well.

    Args:
        backend: The backend whose framework's generators belong to it; empty for none.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    if backend:
        state[backend] = backends.load(backend).random_state.get_random_state()
    return state


def set_random_state(state: Mapping[str, Any], backend: str = "") -> bool:
    """Continue from the result of `get_random_state`.

    Returns:
        Whether the state has the generators of `backend`; a run of another backend has its own.
    """
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    if not backend:
        return True
    if backend in state:
        backends.load(backend).random_state.set_random_state(state[backend])
    return backend in state
