"""Processes that learn together, started by the framework's own launcher, on CPUs with gloo."""

import sys
from pathlib import Path

import pytest

from conformance.joint_learning import assert_joint_learning
from parl_core import training
from parl_core.backends import Learners
from parl_torch.backend import TorchBackend


@pytest.mark.slow
def test_two_processes_learn_as_one_does_from_the_joined_batch(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert_joint_learning(TorchBackend(), launcher, tmp_path)


def test_a_program_that_no_launcher_started_learns_alone() -> None:
    assert training.join_learners() == Learners(0, 1)
    assert training.join_learners().first
