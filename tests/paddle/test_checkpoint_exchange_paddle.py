"""Checkpoints of both backends, read on paddle."""

from pathlib import Path

from parl_core.testing.exchange import CheckpointExchange


class TestExchange(CheckpointExchange):
    backend = "paddle"
    folder = Path(__file__).parents[1] / "data" / "checkpoints"
