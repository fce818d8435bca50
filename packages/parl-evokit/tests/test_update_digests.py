"""Twelve updates give these bits: on every machine, numpy, BLAS and number of threads.

The digests were computed once. If one changes, logs written before can no longer be replayed: that is a new version of
the specification, not a new digest.
"""

import hashlib
from typing import Any

import numpy as np
import pytest

from parl_evokit import ES

DIGESTS = {
    ("ADAM", "CENTERED_RANK", True): "4ded7d4cf206488954c0cb17a39e4ed33e1cc9b165a27e6569dd1dba93b9cdce",
    ("ADAM", "CENTERED_RANK", False): "df593d01d3ce0162edaf13e7976dbb6feb757f9c7f012d6cb264985e1f4ae75d",
    ("SGD", "NORMALIZED", True): "13f262432920b7e3c726057f3ef42601f4b88b9975a26eaee8b1638a772d5a5b",
    ("MOMENTUM", "SIGN", False): "b883a3982900c835d92ce859dd9e866fa69e682e8b120f74b04e4995e2b5b9cd",
    ("ADAM", "CENTERED", True): "1ff4d6baad65f6cf2c5d7c8446fb63410a1bbbcc753d66a315729bc659f2b460",
}
SIZE = 70_001  # several windows of the table and several chunks


def settings(optimizer: str, shaping: str, cached: bool) -> dict[str, Any]:
    return {
        "keys": "COUNTER",
        "solver": {
            "optimizer": {"type": optimizer, "base_lr": 0.05},
            "sampling": {"gaussian_sampling": {"std": 0.3, "cached": cached, "seed": 1024}},
            "update": {"shaping": shaping, "weight_decay": 0.01},
        },
    }


def reward(number: int) -> float:
    """Some numbers with repetitions, made of integers so that they are the same everywhere."""
    return ((number * 7919) % 257 - 128) / 64.0


@pytest.mark.parametrize(("optimizer", "shaping", "cached"), DIGESTS)
def test_twelve_updates_with_stale_samples_give_the_bits_of_the_specification(
    optimizer: str, shaping: str, cached: bool
) -> None:
    es = ES((np.arange(SIZE) % 1001 - 500).astype(np.float32) / np.float32(512), settings(optimizer, shaping, cached))
    waiting: list[Any] = []
    for update in range(12):
        infos = es.ask(11)
        samples = [(info, reward(20 * update + i)) for i, info in enumerate(infos)]
        now, waiting = samples[2:] + waiting, samples[:2]
        es.tell([info for info, _ in now], [r for _, r in now])
    assert es.sampler.model_iter_id == 12
    digest = hashlib.sha256(es.mean.astype("<f4").tobytes()).hexdigest()
    assert digest == DIGESTS[optimizer, shaping, cached]
