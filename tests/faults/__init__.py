"""Faults for the project's own suites only: networks of packets, hostile messages, a full disk.

Tests import it through pytest's `pythonpath`, benchmarks through PYTHONPATH=tests. Users have `parl_remote.testing` for
their own programs.
"""
