"""The entry point by which `parl` finds this backend; paddle is imported when a part of it is first used."""

from parl_core import backends

__all__ = ["PaddleBackend"]


class PaddleBackend(backends.Backend):
    name = "paddle"
