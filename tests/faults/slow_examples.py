"""Importing this takes the deadline from Hypothesis's examples, where Hypothesis is installed.

How long examples take says how busy the machine is, and nothing about what is tested.
"""

import importlib.util

if importlib.util.find_spec("hypothesis") is not None:  # the suites of the backends have none
    from hypothesis import HealthCheck, settings

    settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy machine")
