"""Checkpoints of both backends, read on torch."""

from pathlib import Path

from conformance.exchange import CheckpointExchange


class TestExchange(CheckpointExchange):
    backend = "torch"
    folder = Path(__file__).parents[1] / "data" / "checkpoints"
