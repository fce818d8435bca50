"""Options that paddle lacks on a CPU are refused, not ignored."""

import pytest

from parl_core.errors import HyperparameterError
from parl_paddle.algorithms import DQN
from parl_paddle.networks import QNetwork


def test_bfloat16_is_refused_with_what_to_do() -> None:
    with pytest.raises(HyperparameterError, match=r"an option of parl-torch; .* leave it out on paddle"):
        DQN(QNetwork(2), compute_dtype="bfloat16")
