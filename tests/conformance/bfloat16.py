"""Tensors in bfloat16 are numbers to parl-evokit wherever they stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from parl_evokit import CMAES, ES, InvalidReward


def check_numbers_in_lists(numbers: Iterable[Any]) -> None:
    """Check starts, rewards and injected solutions with the tensors 1.5, -2, 3 and 0.25 in lists and tuples."""
    first, second, third, fourth = numbers
    start: Any = {"x": [[first, second], (3, fourth)], "y": [first]}
    assert ES(start).mean.tolist() == [1.5, -2.0, 3.0, 0.25, 1.5]
    for given in ([1.5, second, third, fourth], [np.float32(1.5), -2, third, 0.25], (1.5, -2.0, 3, fourth)):
        es = ES(given)
        assert es.mean.tolist() == [1.5, -2.0, 3.0, 0.25]
        report = es.tell(es.ask(4), given)
        assert (report.mean_reward, report.best_reward) == (0.6875, 3.0)
    for solutions in ([[first, second]], [(1.5, second)]):
        search = CMAES(np.zeros(2))
        search.inject(solutions, [second])
        assert search.best is not None
        assert search.best.parameters.tolist() == [1.5, -2.0]
        assert search.best.reward == -2.0
    with pytest.raises(InvalidReward, match="1 solutions need one finite reward each"):
        search.inject([[1.5, second]], [[second], [second, third]])
