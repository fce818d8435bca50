"""Shared fixtures of parl-torch's tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, too, float32 has 24 bits
