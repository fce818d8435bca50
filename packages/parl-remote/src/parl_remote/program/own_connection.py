"""An actor's connection to itself, by a handle of its own that it was given: calls wait in its queue as all others do.

Who runs in the thread that runs the calls and waits for one of them would wait for ever, so he is told instead.
"""

from __future__ import annotations

import threading
from typing import Any

from parl_remote.errors import RemoteError
from parl_remote.future import RemoteFuture
from parl_remote.program.connection import Connection

__all__ = ["OwnConnection"]


class OwnConnection(Connection):
    """As any other connection, save that waiting may be refused."""

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """See `Carrier.wait_for`.

        Raises:
            RemoteError: The call that is waited for cannot start before the one that waits for it has ended.
        """
        in_the_way = threading.current_thread() is threading.main_thread()  # threads of max_concurrency are not
        if in_the_way and timeout_s is None and not future.settled:
            raise RemoteError(
                f"an actor waits in a method for its own {future.method}(), which starts when that method has ended: "
                "call the method of `self`, do not wait for the result, or give the class max_concurrency=2"
            )
        return super().wait_for(future, timeout_s)
