"""Shared fixtures of parl-core's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.small_disk import small_disk as small_disk


@pytest.fixture(scope="module")
def importable_classes() -> Iterator[None]:
    """Other processes import the test modules under the names that they have here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3]))
        yield
