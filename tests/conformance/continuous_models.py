"""Actors and critics for continuous actions, written only with `parl.Model` and `parl.layers`, and their shapes."""

from typing import Any

from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from parl_core.backends import Backend

__all__ = [
    "DETERMINISTIC_SHAPES",
    "ENSEMBLE_SHAPES",
    "QUANTILES",
    "QUANTILE_SHAPES",
    "SQUASHED_SHAPES",
    "TWIN_SHAPES",
    "deterministic",
    "ensemble",
    "quantiles",
    "squashed",
    "twin",
]


def _shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}1.weight": (HIDDEN, inputs),
        f"{name}1.bias": (HIDDEN,),
        f"{name}2.weight": (outputs, HIDDEN),
        f"{name}2.bias": (outputs,),
    }


DETERMINISTIC_SHAPES = {**_shapes("pi", OBS_DIM, ACT_DIM), **_shapes("qa", OBS_DIM + ACT_DIM, 1)}
TWIN_SHAPES = {**DETERMINISTIC_SHAPES, **_shapes("qb", OBS_DIM + ACT_DIM, 1)}
SQUASHED_SHAPES = {**TWIN_SHAPES, "spread.weight": (ACT_DIM, HIDDEN), "spread.bias": (ACT_DIM,)}


def deterministic(backend: Backend, *, deep: bool = False) -> Any:
    """`policy(obs)`: tanh of a layer over a hidden one (tanh); `value(obs, action)`: `[batch, 1]`.

    With `deep`, actor and critic have two hidden layers of 32 (ReLU): enough to learn something.
    """
    return _make(backend, deep, critics=("qa",), gaussian=False)


def twin(backend: Backend, *, deep: bool = False) -> Any:
    """The same with two critics; `Q1(obs, action)` is the first of them."""
    return _make(backend, deep, critics=("qa", "qb"), gaussian=False)


def squashed(backend: Backend, *, deep: bool = False) -> Any:
    """Two critics, and `policy(obs)`: (mean, log std), each from a layer of its own over one hidden layer."""
    return _make(backend, deep, critics=("qa", "qb"), gaussian=True)


QUANTILES = 4
QUANTILE_SHAPES = {
    name: (QUANTILES, *shape[1:]) if name.startswith(("qa2", "qb2")) else shape
    for name, shape in SQUASHED_SHAPES.items()
}
ENSEMBLE_SHAPES = {**SQUASHED_SHAPES, **_shapes("qc", OBS_DIM + ACT_DIM, 1)}


def quantiles(backend: Backend, *, deep: bool = False) -> Any:
    """As `squashed`, with `quantiles(obs, action)` `[batch, 2, QUANTILES]` in place of values."""
    return _make(backend, deep, critics=("qa", "qb"), gaussian=True, outputs=QUANTILES)


def ensemble(backend: Backend, *, deep: bool = False) -> Any:
    """As `squashed`, with three critics whose values are `[batch, 3]`."""
    return _make(backend, deep, critics=("qa", "qb", "qc"), gaussian=True)


def _make(backend: Backend, deep: bool, *, critics: tuple[str, ...], gaussian: bool, outputs: int = 1) -> Any:
    layers: Any = backend.layers

    class ContinuousModel(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            for name in ("pi", *critics):
                if deep:
                    setattr(self, f"{name}0", layers.fc(size=32, act="relu"))
                hidden = layers.fc(size=32, act="relu") if deep else layers.fc(size=HIDDEN, act="tanh")
                setattr(self, f"{name}1", hidden)
                setattr(self, f"{name}2", layers.fc(size=ACT_DIM if name == "pi" else outputs))
            self.spread = layers.fc(size=ACT_DIM) if gaussian else None

        def policy(self, obs: Any) -> Any:
            hidden = self._hidden("pi", obs)
            if self.spread is None:
                return layers.tanh(self.pi2(hidden))
            return self.pi2(hidden), self.spread(hidden)

        def value(self, obs: Any, action: Any) -> Any:
            values = tuple(self._critic(name, obs, action) for name in critics)
            if len(values) > 2:
                return layers.concat(values, axis=1)
            return values if len(values) > 1 else values[0]

        def quantiles(self, obs: Any, action: Any) -> Any:
            return layers.stack([self._critic(name, obs, action) for name in critics], axis=1)

        def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that PARL's TD3 asks for
            return self._critic(critics[0], obs, action)

        def get_actor_params(self) -> Any:
            parts = [getattr(self, name) for name in ("pi0", "pi1", "pi2", "spread") if getattr(self, name, None)]
            return [parameter for part in parts for parameter in part.parameters()]

        def _critic(self, name: str, obs: Any, action: Any) -> Any:
            return getattr(self, f"{name}2")(self._hidden(name, layers.concat([obs, action], axis=1)))

        def _hidden(self, name: str, inputs: Any) -> Any:
            if deep:
                inputs = getattr(self, f"{name}0")(inputs)
            return getattr(self, f"{name}1")(inputs)

    return ContinuousModel()
