"""For all tests of this package."""

import faults.repeated_examples  # noqa: F401  # a profile of Hypothesis
from faults.small_disk import small_disk as small_disk
