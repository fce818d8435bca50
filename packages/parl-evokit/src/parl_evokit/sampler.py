"""One model and how its samples differ from it: what clones share, and what a step of an algorithm changes."""

from dataclasses import dataclass

import numpy as np

from parl_evokit.errors import EvolutionError
from parl_evokit.noise import GaussianNoise
from parl_evokit.params import FlatVector
from parl_evokit.records import SamplingInfo

__all__ = ["Advance", "Best", "Sampler"]


@dataclass(frozen=True, eq=False)
class Sampler:
    """One model and how to perturb it; immutable.

    Attributes:
        noise: Where noise comes from.
        std: Its standard deviation, one for all parameters or `[n]`.
        parameters: The model's parameters `[n]`, read-only.
        model_iter_id: How many updates the model has seen.
        fingerprint: Of noise and model.
    """

    noise: GaussianNoise
    std: float | FlatVector
    parameters: FlatVector
    model_iter_id: int
    fingerprint: int

    def perturb(self, key: int, out: FlatVector) -> None:
        """Write the parameters with this key's noise into `out` `[n]`."""
        self.noise.perturb(self.parameters, key, self.std, out=out)

    def require_own(self, info: SamplingInfo) -> None:
        """Refuse a sample of another model.

        Raises:
            EvolutionError: Its fingerprint or its model is another.
        """
        if info.fingerprint != self.fingerprint and info.fingerprint != 0:
            raise EvolutionError(
                f"{info} is of another model, seed or table (fingerprint {self.fingerprint:#010x} here)"
            )
        if info.model_iter_id != self.model_iter_id:
            raise EvolutionError(f"{info} is of model {info.model_iter_id}, here is {self.model_iter_id}")


@dataclass(frozen=True, eq=False)
class Advance:
    """What an algorithm's step changes of the sampler.

    Attributes:
        parameters: The next ones, a new array `[n]`.
        std: The next standard deviation.
        gradient_norm: Euclidean norm of the estimated gradient, or of what stands for it.
    """

    parameters: FlatVector
    std: float | FlatVector
    gradient_norm: float


@dataclass(frozen=True, eq=False)
class Best:
    """The best sample so far.

    Attributes:
        reward: Its reward.
        info: Its record.
        sampler: The model that it perturbed.
    """

    reward: float
    info: SamplingInfo
    sampler: Sampler

    @property
    def parameters(self) -> FlatVector:
        """The sample's parameters `[n]`, a new array."""
        out = np.empty_like(self.sampler.parameters)
        self.sampler.perturb(self.info.noise_key, out)
        return out
