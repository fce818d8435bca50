"""Shared fixtures of parl-torch's tests."""

import pytest
import torch

# Without a GPU, `torch.manual_seed` formats the stack for later errors, which takes longer than many tests.
_seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.set_num_threads(1)
    _seed(7)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, too, float32 has 24 bits
