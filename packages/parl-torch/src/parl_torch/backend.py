"""The entry point by which `parl` finds this backend; PyTorch is imported when a part of it is first used."""

from parl_core import backends

__all__ = ["TorchBackend"]


class TorchBackend(backends.Backend):
    name = "torch"
