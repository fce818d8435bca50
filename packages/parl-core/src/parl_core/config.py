"""The environment variables that parl-core and its backends read; no other module of theirs reads the environment."""

import os

__all__ = ["backend_choice", "device_choice", "visible_gpus"]


def backend_choice() -> str | None:
    """`PARL_BACKEND`: the backend's name, or None when unset or empty."""
    return os.environ.get("PARL_BACKEND", "").strip().lower() or None


def device_choice() -> str | None:
    """`PARL_DEVICE`: where algorithms put their models (`cpu`, `cuda`, `cuda:1`), or None when unset or empty."""
    return os.environ.get("PARL_DEVICE", "").strip() or None


def visible_gpus() -> str | None:
    """`CUDA_VISIBLE_DEVICES`: which GPUs CUDA shows to this process, or None when unset; empty means none."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")
