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
    ("ADAM", "CENTERED_RANK", True): "64ad447554d0934dc4fc7da7d5997db57299e00b094645f30801690ef560379d",
    ("ADAM", "CENTERED_RANK", False): "9120a4e7e158c263fc6b3b0c87a6070a009cda84814be946b8ff9369379057e2",
    ("SGD", "NORMALIZED", True): "cf4801c600478401b9f854d2d854f8c12082b16d102dbc5603750dd523730017",
    ("MOMENTUM", "SIGN", False): "a46e339735d6f7c90b1c0cd5ed1ccd77d27f320965081b4b622a9effd5da8884",
    ("ADAM", "CENTERED", True): "f0e38ad11f1159f8d806b70ddb8820034d458734d4a8eb1364ab5d00d7d7d50d",
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
