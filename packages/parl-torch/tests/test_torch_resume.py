"""Runs on torch that were stopped and resumed; the suite is in `parl_core.testing.resume`."""

from parl_core.testing import ResumeConformance


class TestResume(ResumeConformance):
    backend = "torch"
