"""Paddle is imported here once: it warns about a missing ccache then, and warnings are errors inside tests."""

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle


@pytest.fixture(autouse=True)
def seeded_paddle() -> Iterator[None]:
    """Every test starts from the same generator, with dynamic graphs, and has to leave them on."""
    paddle.seed(0)
    yield
    assert paddle.in_dynamic_mode(), "the test left static graphs on"
