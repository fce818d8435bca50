"""Checkpoints of both backends, read on paddle."""

from pathlib import Path

from conformance.exchange import CheckpointExchange


class TestExchange(CheckpointExchange):
    backend = "paddle"
    folder = Path(__file__).parents[1] / "data" / "checkpoints"
