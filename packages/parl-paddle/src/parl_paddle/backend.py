"""The entry point through which `parl` finds this backend; paddle is imported on first use."""

from parl_core import backends

__all__ = ["PaddleBackend"]


class PaddleBackend(backends.Backend):
    name = "paddle"
