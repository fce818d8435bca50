"""The clone that samples: one per thread or process, each with its own parameter buffer."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from parl_evokit._params import FlatVector
from parl_evokit._records import SamplingInfo, sampling_infos
from parl_evokit._sampler import Sampler
from parl_evokit.errors import EvolutionError
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.noise._keys import CONTROL_KEY, KeySource

__all__ = ["FixedModel", "SamplerSource", "SamplingAgent"]


class SamplerSource(Protocol):
    """The source of the present model and of keys for a clone, such as a `Strategy`."""

    @property
    def sampler(self) -> Sampler:
        """The present model."""

    @property
    def keys(self) -> KeySource:
        """The source of samples' keys."""

    @property
    def takes_stale_samples(self) -> bool:
        """True if samples of older models can be used."""


class FixedModel:
    """A `SamplerSource` for clones in other processes: its model changes only when its sampler is set."""

    def __init__(self, sampler: Sampler, keys: KeySource, takes_stale_samples: bool = True) -> None:
        self.sampler = sampler
        self.keys = keys
        self.takes_stale_samples = takes_stale_samples


class SamplingAgent:
    """A clone of an `ESAgent`; made by `ESAgent.clone()`.

    A clone keeps its parameters until the next `add_noise`, which uses the newest ones; updates do not change them. A
    pickled clone contains model and parameters; in another process it keeps these.

    Args:
        source: The strategy of the original.
        model: The adapter of this clone alone.
    """

    def __init__(self, source: SamplerSource, model: ModelAdapter) -> None:
        self._source = source
        self._model = model
        self._buffer: FlatVector = source.sampler.parameters.copy()
        self._model.bind(self._buffer)
        self._info = SamplingInfo()

    def add_noise(self, info: SamplingInfo | None = None, *, evaluate: bool = False) -> SamplingInfo:
        """Perturb the newest parameters with new noise.

        A share of the samples has no noise (`guard.control_share`), and a share uses the trusted model without noise
        (`guard.holdout_share`).

        Args:
            info: A record to overwrite and return. Default: a new one.
            evaluate: Use no noise (key 0). Such samples measure the model itself; the guard does not compare them,
                because no trusted model is served beside them.

        Returns:
            The record of the sample, to log beside its reward.
        """
        sampler = self._source.sampler
        drawn = CONTROL_KEY if evaluate else self._source.keys.draw()
        info = SamplingInfo() if info is None else info
        sampler.serve(drawn, info, self._buffer)
        self._model.refresh()
        return info

    def draw(self, n: int) -> list[SamplingInfo]:
        """Return the records of `n` samples, as `add_noise` would, for evaluation elsewhere with `apply_noise`."""
        sampler = self._source.sampler
        keys = self._source.keys.draw_many(n).tolist()
        infos = sampling_infos(keys, sampler.origin)
        if sampler.quiet_share:
            for key, info in zip(keys, infos, strict=True):
                if identity := sampler.identity_of(key):
                    info.fill(CONTROL_KEY, *sampler.origin)
                    info.identity = identity
        return infos

    def apply_noise(self, info: SamplingInfo) -> None:
        """Take the parameters of `info`, to evaluate samples of the newest model that were drawn elsewhere.

        Raises:
            EvolutionError: The sample is of another model.
            InvalidKey: Its key is not valid.
        """
        sampler = self._source.sampler
        sampler.require_own(info)
        sampler.apply(info, self._buffer)
        self._model.refresh()

    def take(self, sample: int) -> None:
        """Take the parameters of the sample of the newest model with this key, or with minus this identity."""
        sampler, info = self._source.sampler, self._info
        info.fill(max(sample, CONTROL_KEY), *sampler.origin)
        info.identity = max(-sample, 0)
        sampler.apply(info, self._buffer)
        self._model.refresh()

    @property
    def source(self) -> SamplerSource:
        """The source of the newest model."""
        return self._source

    def follow(self, source: SamplerSource) -> None:
        """Take the newest model and the keys from another source from now on."""
        self._source = source

    @property
    def model(self) -> ModelAdapter:
        """The adapter of the perturbed model."""
        return self._model

    def predict(self, x: Any) -> Any:
        """Return the perturbed model's output for `x`."""
        return self._model.predict(x)

    def parameters(self) -> dict[str, FlatVector]:
        """Return copies of the perturbed parameters by name."""
        return self._model.layout.views(self._buffer.copy())

    def update(self, *_: object, **__: object) -> NoReturn:
        """Raise an error, because only the original can update.

        Raises:
            EvolutionError: Always.
        """
        raise EvolutionError("a clone cannot update: call update() of the original agent")

    def clone(self) -> NoReturn:
        """Raise an error, because only the original can be cloned.

        Raises:
            EvolutionError: Always.
        """
        raise EvolutionError("a clone cannot be cloned: call clone() of the original agent")

    def __reduce__(self) -> tuple[Callable[..., "SamplingAgent"], tuple[Any, ...]]:
        return _restored, (self._fixed(), self._model, self._buffer)

    def _fixed(self) -> FixedModel:
        source = self._source
        return FixedModel(source.sampler, source.keys, source.takes_stale_samples)


def _restored(source: FixedModel, model: ModelAdapter, buffer: FlatVector) -> SamplingAgent:
    agent = SamplingAgent(source, model)
    np.copyto(agent._buffer, buffer)
    agent._model.refresh()
    return agent
