"""Bootstrap masks: shares, independence, and that a transition keeps its own."""

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.replay import BootstrapMasks, ReplayMemory


def everything(masks: BootstrapMasks, size: int) -> np.ndarray:
    return masks.of(np.arange(size))


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_bernoulli_masks_give_each_head_its_share(share: float) -> None:
    drawn = everything(BootstrapMasks(20_000, 4, share, seed=1), 20_000)
    assert set(np.unique(drawn)) <= {0.0, 1.0}
    np.testing.assert_allclose(drawn.mean(axis=0), share, atol=0.015)  # 4 standard deviations of the mean


def test_poisson_masks_count_as_sampling_with_replacement_does() -> None:
    drawn = everything(BootstrapMasks(20_000, 3, 1.0, "poisson", seed=1), 20_000)
    np.testing.assert_allclose(drawn.mean(axis=0), 1.0, atol=0.03)
    np.testing.assert_allclose(drawn.var(axis=0), 1.0, atol=0.06)
    np.testing.assert_allclose((drawn == 0.0).mean(axis=0), np.exp(-1.0), atol=0.02)


def test_heads_draw_independently_of_each_other() -> None:
    drawn = everything(BootstrapMasks(20_000, 4, 0.5, seed=1), 20_000)
    correlations = np.corrcoef(drawn.T)[~np.eye(4, dtype=bool)]
    assert np.abs(correlations).max() < 0.04


def test_a_transition_has_the_same_mask_whenever_it_is_drawn() -> None:
    memory = ReplayMemory(50, 1, 1, seed=1)
    masks = BootstrapMasks(50, 3, seed=2)
    for number in range(70):  # some are overwritten
        memory.append([number], [0.0], 0.0, [number], False)
    seen: dict[float, list[float]] = {}
    for _ in range(30):
        batch = memory.sample(16)
        for number, mask in zip(batch.obs[:, 0].tolist(), masks.of(batch.index).tolist(), strict=True):
            assert seen.setdefault(number, mask) == mask
    assert len({tuple(mask) for mask in seen.values()}) == 8  # all combinations of three heads


def test_the_same_seed_gives_the_same_masks() -> None:
    first, again, other = (everything(BootstrapMasks(100, 5, seed=seed), 100) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_size": 0}, "max_size must be at least 1"),
        ({"heads": 0}, "heads must be at least 1"),
        ({"share": 0.0}, "share must be above 0, else no head learns"),
        ({"share": 1.5}, r"share must lie in \[0, 1\], got 1.5"),
        ({"share": 0.0, "distribution": "poisson"}, "share must be above 0"),
        ({"distribution": "gauss"}, "distribution must be 'bernoulli' or 'poisson', got 'gauss'"),
    ],
)
def test_what_makes_no_masks_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        BootstrapMasks(**{"max_size": 10, "heads": 2, **arguments})  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.parametrize("slot", [10, -1])
def test_a_slot_that_is_not_there_is_refused(slot: int) -> None:
    with pytest.raises(IndexError):
        BootstrapMasks(10, 2).of([0, slot])
