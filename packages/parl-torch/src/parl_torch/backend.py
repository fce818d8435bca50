"""The entry point through which `parl` finds this backend; PyTorch is imported on first use."""

from parl_core import backends

__all__ = ["TorchBackend"]


class TorchBackend(backends.Backend):
    name = "torch"
