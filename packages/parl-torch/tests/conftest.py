"""Shared fixtures of parl-torch's tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
