"""Importing this sets how Hypothesis draws examples, where Hypothesis is installed.

The examples of a test are the same in each run, so that no run fails by luck; `--hypothesis-profile=random` draws
others, a thousand or as many as the test has. There is no deadline: how long an example takes depends on the load of
the machine, not on what is tested.
"""

import importlib.util

if importlib.util.find_spec("hypothesis") is not None:  # the suites of the backends have none
    from hypothesis import HealthCheck, settings

    at_leisure = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("repeated", at_leisure, derandomize=True)
    settings.register_profile("random", at_leisure, max_examples=1000, print_blob=True)
    settings.load_profile("repeated")


def examples(number: int) -> int:
    """Return how many examples a test draws: `number`, or at least those of the profile with random ones."""
    profile = settings()
    return number if profile.derandomize else max(number, profile.max_examples)
