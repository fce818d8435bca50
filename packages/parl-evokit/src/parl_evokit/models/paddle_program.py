"""Models of paddle's inference format: a graph and its parameters in two files, without code.

    model.json, model.pdiparams      what `paddle.static.save_inference_model(prefix, ...)` writes
    model, params                    the same pair by the names of the PARL 1.x manual

The parameters are in a separate scope of paddle. The flat vector is copied there whenever it has changed.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_evokit._directories import path_of
from parl_evokit._params import FlatVector, ParameterLayout
from parl_evokit.errors import LayoutMismatch, SolverError, StorageError

__all__ = ["PaddleProgram", "find_program"]

GRAPHS = (".json", ".pdmodel")
WEIGHTS = ".pdiparams"
_switching = threading.RLock()  # whether graphs are static is a setting of the whole process


class PaddleProgram:
    """A `ModelAdapter` for an inference program.

    Args:
        directory: The directory of the two files.
        name: The common name of the files. Default: that of the only pair in the directory.

    Raises:
        SolverError: There is no unique such pair, or it cannot be read.
    """

    samples_in_threads = False  # see `PaddleModel`

    def __init__(self, directory: str | Path, name: str | None = None) -> None:
        self._graph, self._weights = find_program(path_of(directory, SolverError), name)
        self._scope = paddle.static.Scope()
        with _static(self._scope):
            self._executor = paddle.static.Executor(paddle.CPUPlace())
            try:
                loaded = paddle.static.load_inference_model(*self._where(), self._executor, **self._filenames())
            except (ValueError, RuntimeError, OSError) as error:
                raise SolverError(f"{self._graph} is not an inference program: {error}") from error
        self._program, self._feeds, self._fetches = loaded
        # the directory may be removed before the program is saved elsewhere
        self._graph_bytes = self._graph.read_bytes()
        self._take_layout()

    @property
    def layout(self) -> ParameterLayout:
        """Names and shapes of the parameters that evolve, in the order of their names."""
        return self._layout

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""
        return self._layout.flatten({name: np.array(self._tensor(name)) for name in self._layout.names})

    def bind(self, flat: FlatVector) -> None:
        """Use `flat`, float32 `[n]`, as parameters from now on."""
        self._views = self._layout.views(flat)
        self.refresh()

    def refresh(self) -> None:
        """Copy the bound vector to the program's parameters."""
        for name, view in self._views.items():
            self._tensor(name).set(np.ascontiguousarray(view), paddle.CPUPlace())

    def predict(self, x: Any) -> Any:
        """Return the output for `x`, the only input of the program or a dictionary with all inputs by name.

        Returns:
            The only output of the program, or a list of all outputs; numpy arrays.
        """
        given = x if isinstance(x, dict) else {self._feeds[0]: x}
        feed = {name: np.asarray(value, np.float32) for name, value in given.items()}
        with _static(self._scope):
            outputs = self._executor.run(self._program, feed=feed, fetch_list=self._fetches, scope=self._scope)
        return outputs[0] if len(outputs) == 1 else outputs

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> Any:
        """Return the outputs of a whole population, `[k, ...]`, computed one by one."""
        model = self.clone()
        outputs = []
        for k, flat in enumerate(flats):
            model.bind(flat)
            outputs.append(model.predict(x[k] if each else x))
        return np.stack(outputs)

    def clone(self) -> "PaddleProgram":
        """Return a model with the same program and separate parameters, which can be bound to another vector."""
        other = PaddleProgram.__new__(PaddleProgram)
        other.__dict__.update(self.__dict__)
        other._scope = paddle.static.Scope()
        for name in self._layout.names:
            other._scope.var(name).get_tensor().set(np.array(self._tensor(name)), paddle.CPUPlace())
        return other

    def save(self, directory: Path) -> None:
        """Write the program's two files, which any program with paddle can load, into an existing directory.

        Raises:
            StorageError: The files cannot be written.
        """
        try:
            self._write(directory)
            self._require_whole(directory)
        except (OSError, RuntimeError) as error:
            raise StorageError(f"{directory} cannot be written: {error}") from error

    def _write(self, directory: Path) -> None:
        for old in (self._graph, self._weights):
            (directory / old.name).unlink(missing_ok=True)  # it may be a link to a file that others read
        with _static(self._scope):
            chosen = [value for value in _values(self._program) if value.name in self._layout.names]
            paddle.static.pir_io.save_vars_pir(
                dirname=str(directory), main_program=self._program, vars=chosen, filename=self._weights.name
            )
        (directory / self._graph.name).write_bytes(self._graph_bytes)

    def _require_whole(self, directory: Path) -> None:
        """Reject truncated parameters, because paddle writes to a full disk without an error."""
        whole = False
        with contextlib.suppress(SolverError):
            whole = PaddleProgram(directory, self._name()).parameters().tobytes() == self.parameters().tobytes()
        if not whole:
            raise OSError(f"paddle has not written all of {self._weights.name}; is the disk full?")

    def load(self, directory: Path) -> None:
        """Use the parameters that `save` wrote from now on."""
        other = PaddleProgram(directory, self._name())
        if other.layout != self.layout:
            raise LayoutMismatch(f"{directory} is of another model: it has {other.layout}, this one {self.layout}")
        self._graph, self._weights, self._graph_bytes = other._graph, other._weights, other._graph_bytes
        self.bind(other.parameters())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (str(self._graph.parent), self._name(), self.parameters())

    def _name(self) -> str:
        return self._graph.name.removesuffix(self._graph.suffix) if self._graph.suffix in GRAPHS else self._graph.name

    def _where(self) -> tuple[str]:
        named = self._graph.suffix in GRAPHS
        return (str(self._graph.with_suffix("")) if named else str(self._graph.parent),)

    def _filenames(self) -> dict[str, str]:
        if self._graph.suffix in GRAPHS:
            return {}
        return {"model_filename": self._graph.name, "params_filename": self._weights.name}

    def _take_layout(self) -> None:
        shapes = {value.name: tuple(value.shape) for value in _values(self._program)}
        names = tuple(sorted(shapes))
        self._layout = ParameterLayout(names, tuple(shapes[name] for name in names))
        self._views = self._layout.views(self.parameters())

    def _tensor(self, name: str) -> Any:
        return self._scope.find_var(name).get_tensor()


def find_program(directory: Path, name: str | None = None) -> tuple[Path, Path]:
    """Return the two files of the inference program in a directory: graph and parameters.

    Raises:
        SolverError: There is no program, or there are several and `name` is None.
    """
    pairs = []
    for weights in sorted(directory.glob(f"*{WEIGHTS}")):
        graphs = [weights.with_suffix(suffix) for suffix in GRAPHS if weights.with_suffix(suffix).is_file()]
        pairs += [(graph, weights) for graph in graphs[:1] if name in {None, weights.stem}]
    if (directory / "model").is_file() and (directory / "params").is_file() and name in {None, "model"}:
        pairs.append((directory / "model", directory / "params"))
    if len(pairs) != 1:
        found = ", ".join(graph.name for graph, _ in pairs) or "none"
        raise SolverError(
            f"{directory} must hold one inference program of paddle (name: {name or 'any'}); it has {found}"
        )
    return pairs[0]


def _rebuilt(directory: str, name: str, flat: FlatVector) -> PaddleProgram:
    program = PaddleProgram(directory, name)
    program.bind(flat)
    return program


def _values(program: Any) -> list[Any]:
    return [value for value in program.global_block().all_parameters() if value.persistable]


@contextlib.contextmanager
def _static(scope: Any) -> Iterator[None]:
    """Use static graphs and this scope within the block, in one thread at a time: both belong to the process."""
    with _switching:
        dynamic = paddle.in_dynamic_mode()
        if dynamic:
            paddle.enable_static()
        try:
            with paddle.static.scope_guard(scope):
                yield
        finally:
            if dynamic:
                paddle.disable_static()
