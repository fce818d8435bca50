"""For all tests of this package."""

from hypothesis import HealthCheck, settings

from faults.small_disk import small_disk as small_disk

# How long examples take says how busy the machine is, and nothing about what is tested.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
