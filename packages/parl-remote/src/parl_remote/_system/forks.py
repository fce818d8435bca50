"""Connections that a forked child inherits: it closes its copies, so that peers see the end of the parent.

    channel, listener, actor's process --abandoned_in_children--> a weak registry --os.fork--> child: abandon() of each

`subprocess` and other ways to start a program close all descriptors by themselves and do not come here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from typing import Protocol

__all__ = ["Inheritable", "abandoned_in_children"]


class Inheritable(Protocol):
    """An object with descriptors that belong to the process that opened them."""

    def abandon(self) -> None:
        """Close the copies of the descriptors, without sending anything and without taking a lock of the parent."""


_owners: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def abandoned_in_children(owner: Inheritable) -> None:
    """Call `owner.abandon()` in every child that this process forks while `owner` lives."""
    _owners.add(owner)
    _watch_forks()


@functools.cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for owner in list(_owners):
        with contextlib.suppress(Exception):  # each of the others is still to be closed
            owner.abandon()
    _owners.clear()
