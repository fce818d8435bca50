"""Checkpoints of both backends, read on torch."""

from pathlib import Path

from parl_core.testing.exchange import CheckpointExchange


class TestExchange(CheckpointExchange):
    backend = "torch"
    folder = Path(__file__).parents[1] / "data" / "checkpoints"
