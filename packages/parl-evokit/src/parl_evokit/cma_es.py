"""CMA-ES with active covariance (Hansen, "The CMA evolution strategy: a tutorial", 2016, arXiv 1604.00772).

The tutorial's equation numbers are beside the lines; all defaults are its own.

Samples: x = m + sigma * B * D * z, z normal and made from the key of the sample; C = B * D**2 * B^T. An update needs
only a log of keys, since z comes from the key and B, D and sigma are in the solver. z is exact; the rest uses BLAS and
LAPACK, so results agree between machines up to rounding, not to the bit.

The candidates of a user (`inject`) take part in the next update like samples, but are moved to the distance at which
samples lie from the mean if they are farther away (Hansen, "Injecting external solutions into CMA-ES", 2011, arXiv
1110.4181, equation 4):

    z = (B D)^-1 (x - m) / sigma,   shortened to sqrt(n) + 2 n / (n + 2) if it is longer

Whole numbers (`integers`) are rounded when a sample is made; the update uses the noise as it was drawn. The standard
deviation of such a parameter does not fall below `LEAST_INTEGER_STD`, so that neighbouring numbers are still sampled (a
margin as in Hamano et al. 2022, arXiv 2205.13482, in its simplest form).

Differences from the tutorial: weights are computed for all samples of an update, if these are no fewer than the
population; equal rewards share the mean of their ranks; samples of older models are set aside, except that after a
rollback the trusted model learns from samples of the abandoned model, by their steps from that model. B and D are
recomputed only when C has had time to change (the tutorial's section B.2).
"""

from collections.abc import Mapping
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit._cma_family import (
    LEAST_INTEGER_STD,
    CmaFamily,
    Recombination,
    checked_solutions,
    expected_norm,
    sorted_log_ranks,
)
from parl_evokit._sampler import Advance, Sampler
from parl_evokit._samples import Group, SortedSamples
from parl_evokit.config import SolverKind

__all__ = ["CMAES"]

Matrix = NDArray[np.float64]
PATIENCE = 1.0  # share of C that is updated before it is decomposed; the tutorial's 0.1 does not speed up searches
LARGEST_CONDITION = 1e14  # condition number of C above which float64 cannot separate its axes
ROUNDING = 1e-10  # smallest eigenvalue, relative to the largest


class CMAES(CmaFamily):
    """CMA_ES: adapts the full covariance of the search; for up to some thousand parameters.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std is the initial step size; samples are never
            mirrored) and `sampling.cma_sampling`.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.CMA_ES
    sampler_name = "cma"
    separable = False

    _injected: tuple[Matrix, NDArray[np.float64]] | None = None
    _noise: Matrix | None = None  # order of the samples of a step, if it differs from that of their keys

    def inject(self, solutions: ArrayLike, rewards: ArrayLike) -> None:
        """Let the next update also use candidates that do not come from `ask`.

        They are not saved with the search: call this in the process that updates, before `tell`.

        Args:
            solutions: Parameters `[k, n]`.
            rewards: Larger is better, `[k]`.

        Raises:
            LayoutMismatch: `solutions` is not a table of finite float32 numbers with one column per parameter.
            InvalidReward: `rewards` does not have one finite float32 number per solution.
        """
        table, worth = checked_solutions(solutions, rewards, self.layout.size)
        self._note_injected(table, worth)
        if self._injected is not None:
            table, worth = np.concatenate((self._injected[0], table)), np.concatenate((self._injected[1], worth))
        self._injected = table, worth

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the covariance, its decomposition and the evolution paths, beside the state of the base class."""
        return super()._own_state() | {
            "steps": np.array(self._steps, np.int64),
            "decomposed_at": np.array(self._decomposed_at, np.int64),
            "covariance": self._covariance.copy(),
            "axes": self._axes.copy(),
            "lengths": self._lengths.copy(),
            "path_sigma": self._path_sigma.copy(),
            "path_c": self._path_c.copy(),
        }

    def _begin(self) -> None:
        n = self.layout.size
        self._covariance: Matrix = np.eye(n)  # C
        self._path_sigma = np.zeros(n)  # p_sigma
        self._path_c = np.zeros(n)  # p_c
        self._steps = self._decomposed_at = 0
        self._take_axes(np.eye(n), np.ones(n))

    def _take_axes(self, axes: Matrix, lengths: NDArray[np.float64]) -> None:
        """Take C's principal axes and their lengths; samples are made with the product of both."""
        self._axes, self._lengths = axes, lengths  # B, D
        self._shortest, self._longest = lengths.item(lengths.argmin()), lengths.item(lengths.argmax())
        self._transform: Matrix = axes * lengths
        self._transform.setflags(write=False)

    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps, self._decomposed_at = int(state["steps"]), int(state["decomposed_at"])
        self._covariance = state["covariance"].copy()
        self._path_sigma, self._path_c = state["path_sigma"].copy(), state["path_c"].copy()
        self._take_axes(state["axes"].copy(), state["lengths"].copy())

    def _begin_with(self, covariance: Matrix) -> None:
        self._begin()
        self._covariance = covariance.copy()
        self._decompose()

    def _widest(self) -> float:
        return self._sigma * self._longest

    def _deviations_of_samples(self) -> NDArray[np.float64]:
        deviations: NDArray[np.float64] = self._sigma * np.sqrt(self._covariance.diagonal())
        return deviations

    def _narrow(self, factors: NDArray[np.float64]) -> None:
        self._covariance *= np.outer(factors, factors)
        self._path_c *= factors
        if not self._steps:  # later, samples follow when the covariance is decomposed the next time
            self._decompose()

    def _mirror(self, signs: NDArray[np.float64]) -> None:
        self._covariance *= np.outer(signs, signs)
        self._path_sigma *= signs
        self._path_c *= signs
        self._take_axes(self._axes * signs[:, np.newaxis], self._lengths)

    def _too_small(self) -> str:
        if self._longest**2 > LARGEST_CONDITION * self._shortest**2:
            condition = (self._longest / self._shortest) ** 2
            return f"the condition of the covariance is {condition:.3g}, above {LARGEST_CONDITION:g}"
        return super()._too_small()

    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        n, rewards, z = self.layout.size, group.rewards, self._noise
        z = sampler.normals(group.keys) if z is None else z  # (38)
        if self._injected is not None:
            solutions, worth = self._injected
            injected = self._whitened(self.sampler.steps_to(solutions))
            rewards, z = np.concatenate((rewards, worth)), np.concatenate((z, injected))
        k, order = len(rewards), (-rewards).argsort(kind="stable")
        rewards, z = rewards[order], z[order]
        if rewards[0] == rewards[-1]:  # they contain no information
            return np.zeros(n), 0.0
        parents, _, positive, mueff, rates, total, shares = Recombination.of(sorted_log_ranks(rewards), n)

        rows = np.empty((k + 1, n))  # all y, followed by p_c: one product computes both parts of the update of C
        y = np.matmul(z, self._transform.T, out=rows[:k])  # (39)
        y_w = parents @ y  # (41)
        step = self._sigma * y_w  # (42)

        self._steps += 1
        whitened = self._axes @ (parents @ z)
        whitened *= sqrt(rates.c_sigma * (2 - rates.c_sigma) * mueff)
        self._path_sigma *= 1 - rates.c_sigma
        self._path_sigma += whitened  # (43)
        norm = sqrt(float(self._path_sigma @ self._path_sigma))
        moving = rates.moving(norm, self._steps, n)
        self._path_c *= 1 - rates.c_c
        if moving:
            self._path_c += sqrt(rates.c_c * (2 - rates.c_c) * mueff) * y_w  # (45)
        rows[k] = self._path_c

        weights = np.empty(k + 1)
        weights[:k] = shares
        weights[k] = rates.c_1
        squares = np.add.reduce(np.square(z[positive:]), 1)
        if squares.item(squares.argmin()) < 1e-12:
            np.maximum(squares, 1e-12, out=squares)
        weights[positive:k] *= n / squares  # (46)
        variance_lost = 0.0 if moving else rates.c_1 * rates.c_c * (2 - rates.c_c)
        self._covariance *= 1 + variance_lost - rates.c_1 - rates.c_mu * total  # (47)
        self._covariance += (rows.T * weights) @ rows
        self._sigma *= exp(min(1.0, rates.c_sigma / rates.d_sigma * (norm / expected_norm(n) - 1)))  # (44)
        if (self._steps - self._decomposed_at) * n * (rates.c_1 + rates.c_mu) >= PATIENCE:
            self._decompose()
        return step, sqrt(float(y_w @ y_w))

    def _advance(self, intake: SortedSamples, sampler: Sampler) -> Advance:
        """Return one step of CMA-ES, which uses up the injected candidates."""
        step = super()._advance(intake, sampler)
        self._injected = None
        return step

    def _data_of_round(self, intake: SortedSamples, left: Sampler) -> Matrix:
        """Return the steps of the round's samples relative to their model, whose axes are dropped with it."""
        z = left.normals(intake.groups[0].keys) if intake.groups else np.empty((0, self.layout.size))
        steps: Matrix = (z if left.transform is None else left.shaped(z)) * left.std
        return steps

    def _advance_reverted(self, intake: SortedSamples, sampler: Sampler, kept: Matrix) -> Advance:
        """Return one step from the trusted model, with the samples' steps whitened by its covariance."""
        self._noise = self._whitened(kept)
        try:
            return self._advance(intake, sampler)
        finally:
            self._noise = None

    def _whitened(self, steps: Matrix) -> Matrix:
        """Return the noise that would have made these steps from the mean, shortened where it is too long."""
        z: Matrix = steps / self._sigma @ self._axes / self._lengths
        n = self.layout.size
        longest = sqrt(n) + 2 * n / (n + 2)
        lengths = np.sqrt(np.einsum("kn,kn->k", z, z))
        z *= np.minimum(1.0, longest / np.maximum(lengths, 1e-12))[:, np.newaxis]
        return z

    def _decompose(self) -> None:
        if (integers := self.sampler.integers) is not None:
            least = (LEAST_INTEGER_STD / self._sigma) ** 2
            self._covariance[integers, integers] = np.maximum(self._covariance[integers, integers], least)
        self._covariance = (self._covariance + self._covariance.T) / 2
        squares, axes = np.linalg.eigh(self._covariance)
        if squares[0] < 0.0 and squares[0] < -ROUNDING * np.abs(squares).max():
            # Lengths in (46) are measured by B and D, which may be some steps older than the C that they are taken
            # from, so that few parameters can lose more than C has. The last good C continues, with the new step size.
            self._covariance, squares, axes = self._transform @ self._transform.T, self._lengths**2, self._axes
        self._take_axes(axes, np.sqrt(np.maximum(squares, squares[-1] / LARGEST_CONDITION / 10)))
        self._decomposed_at = self._steps

    def _shape(self) -> tuple[float, Matrix]:
        return self._sigma, self._transform
