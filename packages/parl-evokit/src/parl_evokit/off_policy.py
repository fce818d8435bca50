"""Off-policy evaluation: the reward that a candidate model would have had on traffic that other models served.

    log.sampled(info, context=, action=, propensity=) ─► log ─► read_decisions ─► evaluate(decisions, candidate)

A decision is a context, the action that was taken, the probability of that action, and its reward. Let
w = pi(a|x) / propensity be the ratio of the candidate's probability of that action to the logged one, and q an estimate
of the reward of an action:

    IPS    mean of w * r                                              unbiased, wide if w is large
    SNIPS  sum of w * r / sum of w                                    narrower; biased by some 1/n
    DR     mean of sum over a of pi(a|x) q(x, a) + w * (r - q(x, a))  as narrow as q is good, right if w is right

Horvitz and Thompson 1952; Swaminathan and Joachims 2015, "The self-normalized estimator for counterfactual learning";
Dudik, Langford and Li 2011, "Doubly robust policy evaluation and learning". q is a ridge regression for each action,
fitted on the other half of the decisions (cross-fitting, Chernozhukov et al. 2018), so that no reward predicts itself.
Intervals are those of the central limit theorem, for SNIPS by the delta method.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum, sqrt
from os import PathLike
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import float64_array
from parl_evokit._records import Record, SamplingInfo, is_decision
from parl_evokit.errors import EvolutionError, LayoutMismatch, RecordError, _shown
from parl_evokit.log._frames import Header, is_header, scan
from parl_evokit.log._reader import read_log
from parl_evokit.log._segments import FileGone, FileUnreadable, files_of, stretch_of

__all__ = ["Decisions", "Estimate", "Evaluation", "evaluate", "read_decisions"]

Policy = Callable[[NDArray[np.float32]], NDArray[np.floating]]
RIDGE = 1.0  # ridge of the regression, in units of one decision, so that few decisions have finite results
FOLDS = 2


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions with their rewards.

    Attributes:
        contexts: The input of each decision, `[n, d]`.
        actions: Index of each chosen action, 0 or more, `[n]`.
        propensities: Probability with which each action was chosen, above 0 to 1, `[n]`.
        rewards: Reward of each decision, `[n]`.
    """

    contexts: NDArray[np.float32]
    actions: NDArray[np.int64]
    propensities: NDArray[np.float64]
    rewards: NDArray[np.float64]

    def __post_init__(self) -> None:
        n = len(self.rewards)
        if self.contexts.ndim != 2 or not n == len(self.contexts) == len(self.actions) == len(self.propensities):
            raise EvolutionError(
                f"decisions are contexts [n, d] and n actions, propensities and rewards, not "
                f"{self.contexts.shape}, {len(self.actions)}, {len(self.propensities)} and {n}"
            )
        if n and not (np.isfinite(self.rewards).all() and (self.propensities > 0).all() and self.actions.min() >= 0):
            raise EvolutionError("rewards are finite, propensities above 0, and actions 0 or more")


@dataclass(frozen=True)
class Estimate:
    """An estimate of the mean reward.

    Attributes:
        value: The estimate.
        low: The lower end of the interval.
        high: Its upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Evaluation:
    """A candidate's estimated mean reward.

    Attributes:
        decisions: The number of decisions.
        logged: The mean reward of the models that served.
        ips: Estimate by inverse propensities.
        snips: Self-normalised estimate by inverse propensities.
        dr: Doubly robust estimate.
        effective: The equivalent number of decisions of equal weight, (sum of w)^2 / sum of w^2. Below about a hundred,
            none of the estimates is reliable.
        largest_weight: The largest w.
        mean_weight: The mean of w; 1 but for chance. If it is clearly less, the candidate takes actions that the log
            hardly has, and no estimate and no interval covers their rewards. If it is clearly more, propensities are
            too small.
    """

    decisions: int
    logged: Estimate
    ips: Estimate
    snips: Estimate
    dr: Estimate
    effective: float
    largest_weight: float
    mean_weight: float


def read_decisions(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]], *, default_reward: float | None = None
) -> Decisions:
    """Return all decisions of logs that have a reward; several rewards are combined as an update combines them.

    Samples without noise that have no identity are left out, because their rewards cannot be assigned. Records of other
    writers that `LogWriter` would reject are left out, too.

    Args:
        paths: Logs: directories of segments, or single files.
        default_reward: Reward of a decision without a valid one. Default: such decisions are left out, which is
            right only if each visitor sends a reward, or if rewards are lost for unrelated reasons.

    Raises:
        LogError: A path does not exist, or cannot be read.
        EvolutionError: Contexts differ in length.
    """
    logs = [paths] if isinstance(paths, str | PathLike) else list(paths)
    samples = read_log(logs, max_damage=1.0).samples
    rewarded = samples.where(np.isfinite(samples.rewards)).joined()
    rewards = dict(zip(map(_identity, rewarded.infos()), rewarded.rewards.tolist(), strict=True))
    served: dict[tuple[int, ...], Record] = {}
    for file in files_of(logs):
        try:
            data = stretch_of(file.path, 0, file.size)
        except (FileGone, FileUnreadable):  # `read_log` leaves it out
            continue
        fingerprint: int | None = None
        for payload in scan(data).payloads:
            try:
                if is_header(payload):
                    fingerprint = Header.decode(payload).fingerprint
                    continue
                record = Record.decode(payload)
            except RecordError:
                continue
            if fingerprint is None:  # `read_log` leaves out a segment without a header, with its rewards
                continue
            if record.action is None or not (any(record.info.key) or record.info.identity):
                continue
            if is_decision(record.context, record.action, record.propensity):
                served[_identity(record.info, fingerprint)] = record
    found = ((record, rewards.get(sample, default_reward)) for sample, record in served.items())
    rows = [(record, reward) for record, reward in found if reward is not None]
    if len({len(record.context) for record, _ in rows}) > 1:
        raise EvolutionError("contexts in the log differ in length: they are of different products or versions")
    contexts = b"".join(record.context for record, _ in rows)
    return Decisions(
        np.frombuffer(contexts, "<f4").astype(np.float32).reshape(len(rows), -1 if contexts else 0),
        np.array([record.action for record, _ in rows], np.int64),
        np.array([record.propensity for record, _ in rows], np.float64),
        np.array([reward for _, reward in rows], np.float64),
    )


def _identity(info: SamplingInfo, fingerprint: int = 0) -> tuple[int, ...]:
    """Return the identity of a sample; `fingerprint` is that of its segment."""
    return (*(info.key or (0, 0)), info.identity, info.model_iter_id, info.fingerprint or fingerprint)


def evaluate(decisions: Decisions, candidate: Policy, *, level: float = 0.95) -> Evaluation:
    """Estimate the mean reward that a candidate would have had.

    Args:
        decisions: The decisions of the log.
        candidate: A function from contexts `[n, d]` to the probabilities of all actions `[n, k]`, each row adding up to
            1. A model that ranks by scores returns one-hot rows of its best action.
        level: The confidence level of the intervals, above 0 to below 1.

    Raises:
        EvolutionError: There are fewer than two decisions, `level` is out of its range, or the candidate does not
            return probabilities.
    """
    n = len(decisions.rewards)
    if n < 2:
        raise EvolutionError(f"{n} decisions with a reward are too few to estimate anything")
    if not isinstance(level, int | float | np.floating) or not 0.0 < level < 1.0:
        raise EvolutionError(f"level must be a number above 0 and below 1, not {_shown(level)}")
    returned = candidate(decisions.contexts)  # its exceptions belong to the caller
    try:
        chances = float64_array("probabilities", returned)
    except LayoutMismatch as error:
        raise EvolutionError(f"a candidate must return probabilities [{n}, actions]: {error}") from error
    least = int(decisions.actions.max()) + 1
    k = chances.shape[1] if chances.ndim == 2 else 0
    if k < least or len(chances) != n:
        raise EvolutionError(
            f"a candidate must return probabilities [{n}, actions] of at least {least} actions, not {chances.shape}"
        )
    if not ((chances >= 0.0).all() and np.allclose(chances.sum(1), 1.0, atol=1e-4)):
        raise EvolutionError("a candidate's probabilities must be 0 or more and add up to 1 for each context")
    rows = np.arange(n)
    weights = chances[rows, decisions.actions] / decisions.propensities
    z = NormalDist().inv_cdf(0.5 + level / 2.0)
    total = fsum(weights.tolist())
    snips = float(weights @ decisions.rewards) / total if total > 0.0 else float("nan")
    expected = _regression(decisions, k)
    robust = (chances * expected).sum(1) + weights * (decisions.rewards - expected[rows, decisions.actions])
    squares = float(weights @ weights)
    return Evaluation(
        n,
        _mean(decisions.rewards, z),
        _mean(weights * decisions.rewards, z),
        _around(snips, weights * (decisions.rewards - snips) * (n / total), z) if total else _around(snips, weights, z),
        _mean(robust, z),
        total**2 / squares if squares else 0.0,
        float(weights.max()),
        total / n,
    )


def _mean(values: NDArray[np.float64], z: float) -> Estimate:
    mean = fsum(values.tolist()) / len(values)
    return _around(mean, values - mean, z)


def _around(value: float, deviations: NDArray[np.float64], z: float) -> Estimate:
    n = len(deviations)
    width = z * sqrt(fsum(np.square(deviations).tolist()) / (n - 1) / n)
    return Estimate(value, value - width, value + width)


def _regression(decisions: Decisions, k: int) -> NDArray[np.float64]:
    """Return the estimated reward of each action in each context `[n, k]`, from the decisions of the other folds."""
    n = len(decisions.rewards)
    contexts = decisions.contexts.astype(np.float64)
    contexts -= contexts.mean(0)
    spread = contexts.std(0)
    # In units of their spread, so that the ridge also suits very small or large numbers, such as times.
    features = np.column_stack([np.ones(n), contexts / np.where(spread > 0.0, spread, 1.0)])
    expected = np.zeros((n, k))
    folds = np.arange(n) % FOLDS
    for fold in range(FOLDS):
        rest = folds != fold
        overall = float(decisions.rewards[rest].mean()) if rest.any() else 0.0
        for action in range(k):
            own = rest & (decisions.actions == action)
            x, y = features[own], decisions.rewards[own] - overall
            found = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
            expected[folds == fold, action] = overall + features[folds == fold] @ found
    return expected
