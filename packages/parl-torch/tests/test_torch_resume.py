"""Runs on torch that were stopped and resumed; the suite is in `conformance.resume`."""

from conformance import ResumeConformance


class TestResume(ResumeConformance):
    backend = "torch"
