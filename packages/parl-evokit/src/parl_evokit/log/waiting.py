"""Samples that were served and wait for their reward, across segments, processes and updates.

    served ─┐                       ┌─ rewarded: ready for the update
    waiting ┼─► joined by sample ─► ┤
    rewards ┘                       └─ waiting: kept in the solver's directory until they are too old

A reward's record names its sample whole. Where whoever logs the reward knows no more than the key, as a click that
comes back through a browser, the sample that was served with this key tells the rest.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parl_evokit.noise import CONTROL_KEY
from parl_evokit.samples import NO_KEY, Samples

__all__ = ["joined_rewards", "young"]


def joined_rewards(served: Samples, rewarded: Samples) -> tuple[Samples, Samples]:
    """Join rewards to the samples that were served.

    Args:
        served: Samples without reward, those that have been waiting among them; repetitions count once.
        rewarded: Rewards. One without model (0) and fingerprint (0) is taken for that of the served sample with its
            key, if there is just one.

    Returns:
        The rewards, as complete as they can be, and the samples that have none yet.
    """
    served = served.where((served.keys != CONTROL_KEY) & (served.keys != NO_KEY))  # they cannot be told apart
    if not len(served):
        return rewarded, served
    ordered, starts = served.sorted_runs()
    one = ordered.where(starts)
    rewarded = _named(one, rewarded)
    ours = replace(one, counts=np.zeros_like(one.counts))
    theirs = replace(rewarded, counts=np.ones_like(rewarded.counts))
    together, starts = Samples.concatenated([ours, theirs]).sorted_runs()
    without = np.add.reduceat(together.counts, starts) == 0
    waiting = together.where(starts[without])
    return rewarded, replace(waiting, counts=np.ones_like(waiting.counts), rewards=np.zeros_like(waiting.rewards))


def young(waiting: Samples, model_iter_id: int, max_age: int) -> Samples:
    """Those whose models are at most `max_age` updates older than this one."""
    return waiting.where(model_iter_id - waiting.models <= max_age)


def _named(served: Samples, rewarded: Samples) -> Samples:
    """Rewards that carry nothing but a key, with model and fingerprint of the one served sample that has it."""
    bare = np.flatnonzero((rewarded.fingerprints == 0) & (rewarded.models == 0))
    if not len(bare):
        return rewarded
    by_key: NDArray[np.intp] = np.argsort(served.keys, kind="stable")
    keys = served.keys[by_key]
    first = np.searchsorted(keys, rewarded.keys[bare], "left")
    one = np.searchsorted(keys, rewarded.keys[bare], "right") - first == 1
    rows, sources = bare[one], by_key[first[one]]
    models, fingerprints = rewarded.models.copy(), rewarded.fingerprints.copy()
    models[rows], fingerprints[rows] = served.models[sources], served.fingerprints[sources]
    return replace(rewarded, models=models, fingerprints=fingerprints)
