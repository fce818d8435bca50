"""A genetic algorithm by truncation and mutation (Such et al. 2017, "Deep neuroevolution", arXiv 1712.06567).

    child = parent + std * z          the sample's key selects the parent, and is the seed of z
    the best `parents` of all children and of the `elites` become the next parents; the very best is the model

An update needs only a log of keys, as for the other algorithms. A parent is also stored as keys: its initial parameters
and the mutations since, float32 rounding included (the paper's compact encoding). After `LONGEST_CHAIN` mutations,
chains start again from the parents of that moment, so that a state is loaded in bounded time; also where the settings
have another `std` than the state, because a chain has only one.

Differences from the paper: all children of an update count, and at most half of them become parents; children of older
parents are set aside. The paper evaluates the best ten again thirty times to find the elite. Here the model, which is
the best elite, is one of the samples of each `ask`, without noise, and its reward is the mean of all its rewards. An
elite that kept the reward of a lucky first evaluation would stay for ever. There is no crossover, as in the paper.
The candidates of a user (`inject`) are selected like children; if one becomes a parent, all chains start again from the
parents of that time. After a rollback the trusted model stays the model, and the best children of the round become
parents in addition to it.
"""

from collections.abc import Mapping, Sequence
from math import fsum, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit._cma_family import checked_solutions
from parl_evokit._params import ParameterLayout
from parl_evokit._records import SamplingInfo
from parl_evokit._sampler import Advance, Sampler
from parl_evokit._samples import SortedSamples
from parl_evokit.config import Config, SolverKind
from parl_evokit.errors import LayoutMismatch
from parl_evokit.noise._keys import Arm, identity_in
from parl_evokit.strategy import Strategy

__all__ = ["GA"]

LONGEST_CHAIN = 100


class _Parent(NamedTuple):
    """A parent: the number of its origin, the keys of its mutations, its mean reward, and the number of rewards."""

    origin: int
    chain: tuple[int, ...]
    reward: float
    evaluations: int = 1

    def again(self, rewards: Sequence[float]) -> "_Parent":
        """Return the parent with the mean of its rewards and these; the start of the search has no reward before."""
        known = self.evaluations if isfinite(self.reward) else 0
        total = fsum([*rewards, self.reward * known if known else 0.0])
        evaluations = known + len(rewards)
        return self._replace(reward=total / evaluations, evaluations=evaluations) if rewards else self


class GA(Strategy):
    """GA: the best children become the parents of the next ones.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std of mutations; never mirrored) and
            `sampling.ga_sampling`.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.GA
    sampler_name = "ga"
    _mirrors = False

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        self._origins = self.mean[np.newaxis, :].copy()
        self._parents = [_Parent(0, (), -np.inf)]
        self._injected: list[tuple[float, NDArray[np.float32]]] = []
        self._breed_from(self._origins)

    def inject(self, solutions: ArrayLike, rewards: ArrayLike) -> None:
        """Let the next update also select among candidates that do not come from `ask`, as if they were children.

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
        self._injected += zip(worth.tolist(), table.astype(np.float32), strict=True)

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the parents, as origins with chains of keys, beside the state of the base class."""
        return super()._own_state() | {
            "origins": self._origins.copy(),
            "origin_of": np.array([parent.origin for parent in self._parents], np.int64),
            "chain_lengths": np.array([len(parent.chain) for parent in self._parents], np.int64),
            "chains": np.array([key for parent in self._parents for key in parent.chain], np.uint64),
            "rewards": np.array([parent.reward for parent in self._parents], np.float64),
            "evaluations": np.array([parent.evaluations for parent in self._parents], np.int64),
            "std": np.array(self.sampler.std),  # keys of all mutations
        }

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the parents, and the state of the base class."""
        self._check(state)
        super()._load_own_state(state)
        self._origins = np.array(state["origins"], np.float32)
        keys, first = state["chains"].tolist(), 0
        self._parents = []
        names = ("origin_of", "chain_lengths", "rewards")
        columns = [state[name].tolist() for name in names]
        columns.append(state.get("evaluations", np.ones(len(columns[0]), np.int64)).tolist())  # older states lack it
        for origin, length, reward, evaluations in zip(*columns, strict=True):
            self._parents.append(_Parent(origin, tuple(keys[first : first + length]), reward, evaluations))
            first += length
        std = float(state.get("std", self.sampler.std))  # older states lack it
        rows = np.stack([self._built(parent, std) for parent in self._parents])
        if std != self.sampler.std:
            self._begin_chains(rows)
        self._breed_from(rows)

    @property
    def _max_age(self) -> int:
        return 0

    def ask(self, n: int) -> list[SamplingInfo]:
        """Draw new samples as in `Strategy.ask`; the first of several is the model itself if elites are kept.

        With `guard.rollback`, it is a sample like the others, because the product itself assigns control traffic.
        """
        solver = self.config.solver
        elites = solver.sampling.ga_sampling.elites > 0 and not solver.guard.rollback
        if n < 2 or not elites or not isfinite(self._parents[0].reward):
            return super().ask(n)
        sampler, children = self.sampler, super().ask(n - 1)
        # An identity, so that a sample that is told twice counts once: the key of the first child is new.
        identity = identity_in(Arm.PRESENT, children[0].noise_key)
        model = SamplingInfo([0, 0], sampler.model_iter_id, sampler.fingerprint, identity)
        return [model, *children]

    def _data_of_round(self, intake: SortedSamples, left: Sampler) -> NDArray[np.float32]:
        """Return the parameters of the best children, computed before their parents are dropped."""
        if not intake.groups:
            return np.empty((0, self.layout.size), np.float32)
        (group,) = intake.groups
        most = self.config.solver.sampling.ga_sampling.parents - 1
        best = np.argsort(-group.rewards, kind="stable")[: min(most, len(group.keys) // 2)]
        return left.perturb_many(group.keys[best])

    def _advance_reverted(self, intake: SortedSamples, sampler: Sampler, kept: NDArray[np.float32]) -> Advance:  # noqa: ARG002
        """Return a step that keeps the trusted model and adds the best children as parents.

        A single reward of a child is no reason to replace a model that many rewards have shown to be better.
        """
        model = self._parents[0]
        rows = np.concatenate((sampler.parameters[np.newaxis], kept))
        self._origins = rows.copy()
        self._parents = [_Parent(place, (), -np.inf) for place in range(len(rows))]
        self._parents[0] = self._parents[0]._replace(reward=model.reward, evaluations=model.evaluations)
        return Advance(sampler.parameters.copy(), sampler.std, 0.0, parents=_frozen(rows))

    def _advance(self, intake: SortedSamples, sampler: Sampler) -> Advance:
        (group,) = intake.groups
        settings = self.config.solver.sampling.ga_sampling
        self._parents[0] = self._parents[0].again(intake.controls.get(0, []))
        children = [
            (float(reward), int(key)) for reward, key in zip(group.rewards.tolist(), group.keys.tolist(), strict=True)
        ]
        # Equal rewards are ordered by key, which does not depend on how samples came; an elite goes first.
        ranked = sorted(
            [(-reward, 1, key, key) for reward, key in children]
            + [(-parent.reward, 0, place, -1) for place, parent in enumerate(self._parents[: settings.elites])]
        )
        injected, self._injected = self._injected, []
        ranked = sorted(ranked + [(-reward, 2, place, -2) for place, (reward, _) in enumerate(injected)])
        chosen = ranked[: max(1, min(settings.parents, (len(children) + len(injected)) // 2))]
        assert sampler.parents is not None
        rows = np.empty((len(chosen), self.layout.size), np.float32)
        parents = []
        for row, (minus_reward, _, number, key) in zip(rows, chosen, strict=True):
            if key == -2:
                row[...] = injected[number][1]
                parents.append(_Parent(0, (), -minus_reward))
            elif key == -1:
                row[...] = sampler.parents[number]
                parents.append(self._parents[number])
            else:
                sampler.perturb(key, row)
                parent = self._parents[sampler.parent_of(key)]
                parents.append(_Parent(parent.origin, (*parent.chain, key), -minus_reward))
        self._parents = parents
        if any(kind == -2 for *_, kind in chosen) or max(len(parent.chain) for parent in parents) > LONGEST_CHAIN:
            self._begin_chains(rows)
        step = rows[0].astype(np.float64) - sampler.parameters
        return Advance(rows[0].copy(), sampler.std, float(np.linalg.norm(step)), parents=_frozen(rows))

    def _begin_chains(self, rows: NDArray[np.float32]) -> None:
        """Make the parents, whose parameters are these rows, the origins of all further mutations."""
        self._origins = rows.copy()
        self._parents = [parent._replace(origin=place, chain=()) for place, parent in enumerate(self._parents)]

    def _built(self, parent: _Parent, std: float) -> NDArray[np.float32]:
        """Return a parent's parameters, by all its mutations in their order."""
        row: NDArray[np.float32] = self._origins[parent.origin].copy()
        for key in parent.chain:
            self.sampler.noise.perturb(row, key, std, out=row)
        return row

    def _breed_from(self, rows: NDArray[np.float32]) -> None:
        self._sample_with(self.sampler.std, parents=_frozen(rows))

    def _check(self, state: Mapping[str, NDArray[Any]]) -> None:
        names = ("origins", "origin_of", "chain_lengths", "chains", "rewards")
        missing = [name for name in names if name not in state]
        if missing:
            raise LayoutMismatch(f"the state of GA lacks {', '.join(missing)}")
        origins, origin_of, lengths, chains, rewards = (state[name] for name in names)
        fits = (
            origins.ndim == 2
            and origins.shape[1] == self.layout.size
            and len(origin_of) == len(lengths) == len(rewards) > 0
            and int(lengths.min()) >= 0
            and int(lengths.sum()) == len(chains)
            and int(origin_of.min()) >= 0
            and int(origin_of.max()) < len(origins)
        )
        if not fits:
            shapes = {name: state[name].shape for name in names}
            raise LayoutMismatch(f"the state of GA does not fit {self.layout.size} parameters: {shapes}")


def _frozen(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = rows.copy()
    rows.flags.writeable = False
    return rows
