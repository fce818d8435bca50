"""Trained agents as files that other programs run: numpy, ONNX, `torch.export`, Paddle Inference.

    agent, environment ──> file under another name ──> a fresh process runs it ──> the same actions? ──> its name
                      └──> 1,000 observations, actions of the agent ───────────────────┘

A file takes the environment's own observations and returns actions for its `step`: it includes flattening, running
normalisation, masks and bounds. For a model with a memory it also takes and returns the state, and is compared over
sequences. The backend's own `export` module writes the formats of its framework.
"""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import _agent_file, backends
from parl_core._nested import map_nested
from parl_core._pipeline import Normalization, Pipeline, action_leaves, describe, observation_leaves, state_names
from parl_core._version import __version__
from parl_core.atomic_write import sync
from parl_core.checks import check_int
from parl_core.env._vector_group import EnvMaker, make_env
from parl_core.errors import HyperparameterError, ParlError
from parl_core.policy import Policy, pack
from parl_core.spaces import blank_observations, dimensions_of, named
from parl_core.stats import statistics_of
from parl_core.training.acting import into_space
from parl_core.training.trained import Trained

__all__ = [
    "FORMATS",
    "ExportError",
    "Exported",
    "Format",
    "Normalization",
    "Pipeline",
    "action_leaves",
    "export",
    "export_run",
    "frozen",
    "observation_leaves",
    "state_names",
]

FORMATS: Mapping[str, str] = {"numpy": "", "onnx": "torch", "torch-export": "torch", "paddle-inference": "paddle"}
"""The formats with the backend that writes each; both write numpy."""

_NAMES = {
    "numpy": "agent.policy",
    "onnx": "agent.onnx",
    "torch-export": "agent.pt2",
    "paddle-inference": "agent-paddle",
}

_TOLERANCE = 1e-4
"""Tolerance of numbers relative to the largest one, because frameworks sum in different orders."""

_RUN = """
import sys
import numpy as np

{load}

inputs = dict(np.load(sys.argv[2]))
rows = len(next(iter(inputs.values())))
edges = sorted({{0, 1, *range(4, rows, 64), rows}})
parts = [run({{name: array[low:high] for name, array in inputs.items()}}) for low, high in zip(edges, edges[1:])]
np.savez(sys.argv[3], *[np.concatenate(column) for column in zip(*parts)])
"""

_RUN_SEQUENCES = """
import sys
import numpy as np

{load}

inputs = dict(np.load(sys.argv[2]))
begins = inputs.pop("begins")
start = {{name: inputs.pop(name) for name in list(inputs) if name.startswith("state.")}}

def play(sequences):
    state = {{name: np.repeat(array, len(sequences), 0) for name, array in start.items()}}
    steps = []
    for step in range(begins.shape[1]):
        for array in state.values():
            array[begins[sequences, step]] = 0.0
        found = run({{**{{name: array[sequences, step] for name, array in inputs.items()}}, **state}})
        state = {{name: np.array(array) for name, array in zip(start, found[-len(start):])}}
        steps.append(found[:-len(start)])
    return [np.stack(column, 1) for column in zip(*steps)]

played = [play(sequences) for sequences in ([0], list(range(1, len(begins)))) if sequences]
np.savez(sys.argv[3], *[np.concatenate(each).reshape(-1, *each[0].shape[2:]) for each in zip(*played)])
"""

_LOAD_NUMPY = """
from parl_core.policy import load

policy = load(sys.argv[1])

def nested(space, arrays):
    if "shape" in space:
        return next(arrays)
    if "tuple" in space:
        return tuple(nested(part, arrays) for part in space["tuple"])
    return {key: nested(part, arrays) for key, part in space["dict"].items()}

def flat(actions):
    if isinstance(actions, dict):
        actions = tuple(actions.values())
    return [leaf for part in actions for leaf in flat(part)] if isinstance(actions, tuple) else [actions]

def run(inputs):
    state = {name.removeprefix("state."): inputs[name] for name in inputs if name.startswith("state.")}
    observations = nested(policy.description["observation"], (inputs[name] for name in inputs if name[:6] != "state."))
    if not state:
        return [*flat(policy(observations)), policy.scores(observations)]
    actions, after = policy(observations, state=state)
    return [*flat(actions), policy.scores(observations, state=state), *(after[name] for name in state)]

foreign = {"torch", "paddle", "gymnasium"} & set(sys.modules)
assert not foreign, foreign
"""


class ExportError(ParlError):
    """The actions of an exported file differ from the agent's, or it could not be run; no file remains."""


class Format(NamedTuple):
    """The functions of a backend for one format.

    Attributes:
        write: Function of pipeline, observations (arrays of several rows by name) and path.
        load: Program text that defines `run(inputs)` for the file in `sys.argv[1]`: from arrays by name, it returns the
            arrays of each part of the action, and the scores at the end. It contains the imports that a user of the
            file needs.
    """

    write: Callable[[Pipeline, Mapping[str, NDArray[Any]], Path], None]
    load: str


class Exported(NamedTuple):
    """The result of an export.

    Attributes:
        path: Path of the file or folder.
        size: Size in bytes.
        observations: The number of compared observations.
        equal: number of equal actions; numbers count as equal within rounding.
        difference: The largest difference between numbers of actions; 0 if all actions are choices.
    """

    path: Path
    size: int
    observations: int
    equal: int
    difference: float


def export(
    agent: Any,
    path: str | os.PathLike[str],
    env: EnvMaker,
    to: str = "numpy",
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    normalization: Any = None,
    observations: int = 1000,
    seed: int = 0,
) -> Exported:
    """Write a trained agent as a file, which gets its name after a fresh process has acted with it like the agent.

        export(agent, "agent.policy", "CartPole-v1")
        export(agent, "agent.onnx", "CartPole-v1", to="onnx")

    Args:
        agent: a `parl.Agent`.
        path: Path of the file, which is replaced if it exists; for "paddle-inference", of a folder that must not exist.
        env: The environment of training without normalising wrappers: a registered id, or a function that returns an
            environment. Its episodes supply the observations.
        to: "numpy", whose files `parl_core.policy.load` reads; "onnx" or "torch-export" of agents on torch,
            "paddle-inference" of those on paddle.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        normalization: the wrapper (`NormalizeVector`, `wrap_rms`) or the `Normalization` by which the observations of
            training were normalised.
        observations: the number of observations to compare.
        seed: Seed of the episodes.

    Raises:
        HyperparameterError: there is no such format, or it belongs to the other backend.
        ModelContractError: the model, or a layer of it, has no form in this format.
        ExportError: the file acts differently from the agent, or cannot be run.
        FileExistsError: there is a folder of that name.
        ImportError: a package that the format needs is missing; the message names it.
    """
    check_int("observations", observations)
    if to not in FORMATS:
        raise HyperparameterError(f"to must be one of {', '.join(FORMATS)}, got {to!r}")
    if FORMATS[to] not in ("", agent.BACKEND):
        raise HyperparameterError(f"{to} is written by the {FORMATS[to]} backend; this agent is on {agent.BACKEND}")
    target = Path(path).expanduser()
    if target.is_dir():
        raise FileExistsError(f"{target} is a folder: give the name of a new one, or of a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    form = _NUMPY if to == "numpy" else backends.load(FORMATS[to]).export.formats()[to]
    with _made(env, env_kwargs) as (raw, is_flat):
        pipeline = Pipeline(
            agent.alg, raw.observation_space, raw.action_space, is_flat, _normalization_of(normalization)
        )
        seen, begins = _seen(agent, raw, pipeline, observations, seed)
    inputs = {name: np.stack([leaf(one) for one in seen]) for name, leaf in observation_leaves(pipeline.inputs)}
    examples = {name: np.resize(array, (3, *array.shape[1:])) for name, array in inputs.items()}
    if pipeline.state:
        actions = _actions_of_sequences(agent, pipeline, seen, begins)
        state = dict(zip(state_names(pipeline), pipeline.state.values(), strict=True))
        examples |= {name: np.repeat(array, 3, 0) for name, array in state.items()}
        rows = _sequences(len(seen))
        inputs = {name: array.reshape(rows, -1, *array.shape[1:]) for name, array in inputs.items()}
        inputs |= {**state, "begins": begins.reshape(rows, -1)}
    else:
        actions = _actions_of(agent, pipeline, seen)
    with _temporary(target) as (written, folder):
        form.write(pipeline, examples, written)
        found = _run_elsewhere(_RUN_SEQUENCES if pipeline.state else _RUN, form.load, written, inputs, folder)
        equal, difference = _compared(pipeline, actions, found)
        size = sum(file.stat().st_size for file in _files(written))
        for file in _files(written):
            sync(file)
        os.replace(written, target)
    with suppress(OSError):
        sync(target.parent)
    return Exported(target, size, len(seen), equal, difference)


def frozen(agent: Any, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> Policy:
    """Return the agent's current policy in numpy; later learning does not change it.

    It can be pickled and acts without a framework in any process, for instance as an opponent in self-play. `export`
    writes a file, and compares it with the agent.

    Args:
        agent: a `parl.Agent` whose model is one of `parl.networks`.
        observation_space: the space of the agent's observations.
        action_space: its actions.

    Raises:
        ModelContractError: the model, or a layer of it, has no form in numpy.
    """
    if agent.alg.model._waiting():  # its layers get their shapes from the first observation
        agent.predict(blank_observations(observation_space, 1))
    return Policy(*describe(Pipeline(agent.alg, observation_space, action_space)))


def export_run(
    run: Path,
    to: str = "numpy",
    path: Path | None = None,
    *,
    last: bool = False,
    observations: int = 1000,
    seed: int = 0,
) -> Exported:
    """Write the agent of a run of `parl train` as a file, as `export` does, with the backend that it needs.

    Args:
        run: The folder of the run.
        to: the format.
        path: Path of the file; default: `agent.policy`, `agent.onnx`, `agent.pt2` or `agent-paddle` in the folder.
        last: True for the agent at the end of the run instead of the best one.
        observations: the number of observations to compare.
        seed: Seed of their episodes.

    Raises:
        CheckpointError: the folder holds no trained agent.
        HyperparameterError: there is no such format.
        ModelContractError, ExportError, FileExistsError, ImportError: as in `export`.
    """
    if to not in FORMATS:
        raise HyperparameterError(f"to must be one of {', '.join(FORMATS)}, got {to!r}")
    trained = Trained.read(run).for_this_machine()
    file = run / (trained.LAST if last else trained.FILE)
    trained.require_weights(file)
    backends.set_backend(FORMATS[to] or trained.backend)
    agent = trained.make_agent()
    saved = _agent_file.read(file)
    statistics = saved.normalization
    agent.alg.set_state(saved.state)
    return export(
        agent,
        run / _NAMES[to] if path is None else path,
        trained.make_env,
        to,
        normalization=Normalization(statistics["ob_mean"], statistics["ob_var"]) if "ob_mean" in statistics else None,
        observations=observations,
        seed=seed,
    )


def _write_numpy(pipeline: Pipeline, examples: Mapping[str, NDArray[Any]], path: Path) -> None:  # noqa: ARG001
    description, arrays = describe(pipeline)
    path.write_bytes(pack({"written_by": f"parl-core {__version__}", **description}, arrays))


_NUMPY = Format(_write_numpy, _LOAD_NUMPY)


def _normalization_of(given: Any) -> Normalization | None:
    if given is None or isinstance(given, Normalization):
        return given
    wrapper: Any = statistics_of(given)
    if wrapper.ob_rms is None:
        return None
    clip = wrapper.clip_obs if hasattr(wrapper, "clip_obs") else wrapper.clipob
    return Normalization(wrapper.ob_rms.mean.copy(), wrapper.ob_rms.var.copy(), float(clip), float(wrapper.epsilon))


@contextmanager
def _made(env: EnvMaker, env_kwargs: Mapping[str, Any] | None) -> Iterator[tuple[Any, bool]]:
    """Provide an environment without its flattening wrapper, and a flag for this wrapper."""
    made = make_env(env, env_kwargs)
    try:
        is_flat = isinstance(made, gymnasium.wrappers.FlattenObservation)
        yield (made.env, True) if is_flat else (made, False)
    finally:
        made.close()


def _as_model_sees(pipeline: Pipeline, observations: Sequence[Any]) -> Any:
    """Return a batch of observations in the form of training."""
    space = pipeline.observation
    if pipeline.is_flat:
        rows: list[Any] = [gymnasium.spaces.flatten(space, one) for one in observations]
        batch: Any = np.stack(rows)
    else:
        batch = map_nested(lambda *parts: np.stack(parts), *(named(space, one) for one in observations))
    found = pipeline.normalization
    if found is None:
        return batch
    scaled = (batch - found.mean) / np.sqrt(found.var + found.epsilon)
    return np.clip(scaled, -found.clip, found.clip).astype(np.float32)


@contextmanager
def _acting(agent: Any, pipeline: Pipeline) -> Iterator[Callable[..., Any]]:
    """Provide a function that returns the parts of the agent's actions for a list of observations.

    For an agent with a memory, the function also takes the state, and returns the next state after the parts.
    """
    valid = into_space(pipeline.action, unit_box=pipeline.acts_in_unit_box)
    was_training, dimensions = agent.training, agent.obs_ndim
    agent.eval()
    if not pipeline.is_flat:
        agent.obs_ndim = dimensions_of(pipeline.observation)

    def act(observations: Sequence[Any], state: Any = None) -> Any:
        inputs = _as_model_sees(pipeline, observations)
        if state is None:
            return list(_flat(valid(agent.predict(inputs))))
        actions, after = agent.predict(inputs, state=state)
        return list(_flat(valid(actions))), after

    try:
        yield act
    finally:
        agent.obs_ndim = dimensions
        if was_training:
            agent.train()


def _actions_of(agent: Any, pipeline: Pipeline, observations: Sequence[Any]) -> list[NDArray[Any]]:
    """Return the parts of the agent's actions, each `[n, ...]`."""
    with _acting(agent, pipeline) as act:
        found = [act(observations[i : i + 64]) for i in range(0, len(observations), 64)]
    return [np.concatenate(column) for column in zip(*found, strict=True)]


def _sequences(observations: int) -> int:
    """Return the number of sequences of equal length in which observations of a policy with a memory are played."""
    return max((rows for rows in (2, 4, 5, 8) if observations % rows == 0 and observations > rows), default=1)


def _actions_of_sequences(
    agent: Any, pipeline: Pipeline, observations: Sequence[Any], begins: NDArray[np.bool_]
) -> list[NDArray[Any]]:
    """Return the parts of the actions of an agent with a memory for sequences, which are played in parallel."""
    rows = _sequences(len(observations))
    length, steps = len(observations) // rows, []
    state = agent.initial_state(rows)
    with _acting(agent, pipeline) as act:
        for step in range(length):
            for array in state.values():
                array[begins[step::length]] = 0.0
            found, after = act(observations[step::length], state)
            state = {name: np.array(array) for name, array in after.items()}
            steps.append(found)
    return [np.stack(column, 1).reshape(-1, *column[0].shape[1:]) for column in zip(*steps, strict=True)]


def _seen(agent: Any, env: Any, pipeline: Pipeline, count: int, seed: int) -> tuple[list[Any], NDArray[np.bool_]]:
    """Return observations of episodes, of which every other one is played at random (if no mask excludes actions).

    Also return flags of the first observations of episodes; for an agent with a memory, each sequence begins an
    episode.
    """
    env.action_space.seed(seed)
    observations: list[Any] = []
    begins = np.zeros(count, np.bool_)
    ended, episode, observation = True, -1, None
    state: Any = None
    length = count // _sequences(count) if pipeline.state else count
    with _acting(agent, pipeline) as act:
        for i in range(count):
            if ended or i % length == 0:
                episode += 1
                observation, _ = env.reset(seed=seed + episode)
                begins[i] = True
                state = agent.initial_state(1) if pipeline.state else None
            # A copy, because some environments reuse the memory.
            observations.append(_copied(observation))
            if episode % 2 or pipeline.has_mask:
                chosen = act([observation], state)
                if state is not None:
                    chosen, state = chosen
                action = _rebuilt(env.action_space, iter([part[0] for part in chosen]))
            else:
                action = env.action_space.sample()
            observation, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
    return observations, begins


def _copied(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: _copied(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(_copied, observation))
    return np.array(observation)


def _rebuilt(space: Any, parts: Iterator[Any]) -> Any:
    match space:
        case gymnasium.spaces.Dict():
            return {key: _rebuilt(part, parts) for key, part in space.spaces.items()}
        case gymnasium.spaces.Tuple():
            return tuple(_rebuilt(part, parts) for part in space.spaces)
    return next(parts)


def _flat(actions: Any) -> Iterator[Any]:
    if isinstance(actions, (Mapping, tuple)):
        for part in actions.values() if isinstance(actions, Mapping) else actions:
            yield from _flat(part)
    else:
        yield np.asarray(actions)


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[Path, Path]]:
    """Provide a path beside the target to write to, of its suffix, and its folder, which is removed afterwards."""
    folder = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    folder.mkdir()
    try:
        yield folder / f"exported{target.suffix}", folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]


def _run_elsewhere(
    run: str, load: str, written: Path, inputs: Mapping[str, NDArray[Any]], folder: Path
) -> list[NDArray[Any]]:
    """Run a file in a new process, and return the results.

    Raises:
        ExportError: It failed; the message has its output.
    """
    given, found, program = folder / "inputs.npz", folder / "outputs.npz", folder / "run.py"
    np.savez(given, allow_pickle=False, **inputs)
    program.write_text(run.format(load=load))
    search = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, str(program), str(written), str(given), str(found)],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ExportError(f"the exported file does not run in a fresh process:\n{done.stderr.strip()[-2000:]}")
    with np.load(found) as arrays:
        return [arrays[f"arr_{i}"] for i in range(len(arrays.files))]


def _compared(pipeline: Pipeline, expected: list[NDArray[Any]], found: list[NDArray[Any]]) -> tuple[int, float]:
    """Return the number of equal actions, and the largest difference of their numbers.

    A choice may differ if the file's scores of both choices are equal up to rounding.

    Raises:
        ExportError: actions differ.
    """
    *actions, columns = found
    if [part.shape for part in actions] != [part.shape for part in expected]:
        shapes = [list(part.shape) for part in actions], [list(part.shape) for part in expected]
        raise ExportError(f"the exported file gives actions of shapes {shapes[0]}, the agent of {shapes[1]}")
    same = np.ones(len(columns), np.bool_)
    largest, edge, sizes = 0.0, 0, iter(pipeline.sizes)
    for (name, space), theirs, ours in zip(action_leaves(pipeline.action), actions, expected, strict=True):
        if isinstance(space, gymnasium.spaces.Box):
            difference = np.abs(theirs.astype(np.float64) - ours).reshape(len(ours), -1)
            scale = max(1.0, float(np.abs(ours).max(initial=0.0)))
            if not (difference <= _TOLERANCE * scale).all():
                row = int(np.argmax(difference.max(1)))
                raise ExportError(
                    f"{name} of observation {row} is {theirs[row]} by the exported file, and {ours[row]} by the agent"
                )
            largest = max(largest, float(difference.max(initial=0.0)))
            continue
        start = np.asarray(getattr(space, "start", 0))
        mine, other = ((part - start).reshape(len(same), -1) for part in (ours, theirs))
        for column in range(mine.shape[1]):
            size = next(sizes)
            scored = columns[:, edge : edge + size].astype(np.float64)
            edge += size
            for row in np.flatnonzero(mine[:, column] != other[:, column]).tolist():
                of_both = scored[row, [mine[row, column], other[row, column]]]
                if abs(of_both[0] - of_both[1]) > _TOLERANCE * max(1.0, float(np.abs(scored[row]).max())):
                    raise ExportError(
                        f"{name} of observation {row} is {theirs[row]} by the exported file, and {ours[row]} by the "
                        "agent"
                    )
                same[row] = False
    return int(same.sum()), largest
