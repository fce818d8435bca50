"""What several test files of parl-core need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_core.testing.small_disk import mounted_disk


@pytest.fixture(scope="module")
def importable_classes() -> Iterator[None]:
    """Other processes import the test modules under the names that they have here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3]))
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with mounted_disk(tmp_path, 1) as place:
        yield place
