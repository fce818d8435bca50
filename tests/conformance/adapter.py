"""The description of a backend's framework for the suite, and the base of all suites."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from parl_core.backends import Backend
from parl_core.model import Weights

__all__ = [
    "FLOAT32",
    "FLOAT64",
    "Adapter",
    "Conformance",
    "Precision",
    "assert_weights_close",
    "in_pairs",
    "random_weights",
]


class Adapter(Protocol):
    """A framework, seen from the suite."""

    @property
    def backend(self) -> Backend:
        """The backend under test."""

    def seed(self, seed: int) -> None:
        """Seed the framework's generators."""

    def double(self, model: Any) -> Any:
        """The model in float64; it has not seen a batch yet."""


@dataclass(frozen=True)
class Precision:
    """A dtype and how far from the reference its results may be."""

    name: str
    dtype: type[np.floating[Any]]
    tolerance: float


FLOAT32 = Precision("float32", np.float32, 1e-5)
FLOAT64 = Precision("float64", np.float64, 1e-9)


def in_pairs(**choices: dict[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by `precision` and two or more other arguments, half of the combinations marked as slow.

    The quick half has each choice of an argument beside each choice of every other one.

    Args:
        choices: of each other argument, by the names that appear in the tests' names.
    """
    choices = {"precision": {FLOAT32.name: FLOAT32, FLOAT64.name: FLOAT64}, **choices}
    cases = []
    for case in itertools.product(*(enumerate(named.items()) for named in choices.values())):
        places, named = zip(*case, strict=True)
        names, values = zip(*named, strict=True)
        marks = pytest.mark.slow if sum(places) % 2 else ()
        cases.append(pytest.param(*values, id="-".join(names), marks=marks))
    return pytest.mark.parametrize(tuple(choices), cases)


class Conformance:
    """Base of the suites; a subclass in a backend's tests sets `adapter`."""

    adapter: ClassVar[Adapter]

    @pytest.fixture(params=[FLOAT32, FLOAT64], ids=lambda precision: precision.name)
    def precision(self, request: pytest.FixtureRequest) -> Precision:
        """Each numeric test runs in both precisions."""
        found: Precision = request.param
        return found

    @property
    def backend(self) -> Backend:
        return self.adapter.backend

    def model(self, make: Callable[[Backend], Any], weights: Weights, precision: Precision = FLOAT32) -> Any:
        """A model with these weights, in portable names and layouts."""
        model = make(self.backend)
        if precision is FLOAT64:
            model = self.adapter.double(model)
        model.set_weights(weights, portable=True)
        return model

    def algorithm(self, name: str, model: Any, **settings: Any) -> Any:
        """An algorithm on the CPU, whose results are exact enough everywhere."""
        return getattr(self.backend.algorithms, name)(model, device="cpu", **settings)


def random_weights(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]]) -> Weights:
    """Weights of a size that keeps activations away from saturation."""
    return {name: rng.normal(scale=0.5, size=shape) for name, shape in shapes.items()}


def assert_weights_close(found: Weights, expected: Weights, tolerance: float) -> None:
    """Same names, and numbers that differ by no more than `tolerance` (absolute, and relative to large ones)."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
