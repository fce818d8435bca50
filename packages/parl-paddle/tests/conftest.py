"""Shared fixtures of parl-paddle's tests."""

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # paddle warns when it is imported without ccache; inside tests that is an error
    import paddle


@pytest.fixture(autouse=True)
def _reproducible() -> Iterator[None]:
    paddle.seed(7)
    yield
    assert paddle.in_dynamic_mode(), "the test left static graphs on"
