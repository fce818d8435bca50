"""Remote classes for plain parallel Python: objects of any class run in separate processes, on one machine or many.

    import parl_remote

    @parl_remote.remote_class
    class Actor:
        def add(self, a, b):
            return a + b

    parl_remote.connect()       # a private cluster of this machine; or "host:port"
    Actor().add(1, 2)           # 3, computed in a separate process

Names are imported on first use, so `import parl_remote` takes almost no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from parl_core._compatibility import require_core
from parl_remote._version import PARL_CORE, __version__

if TYPE_CHECKING:
    from parl_remote._connect import connect as connect
    from parl_remote._connect import disconnect as disconnect
    from parl_remote._connect import get_actor as get_actor
    from parl_remote._connect import get_global_client as get_global_client
    from parl_remote._connect import kill as kill
    from parl_remote._decorator import remote_class as remote_class
    from parl_remote._decorator import submit as submit
    from parl_remote._decorator import with_options as with_options
    from parl_remote._functions.executor import Executor as Executor
    from parl_remote._functions.executor import RemoteFunction as RemoteFunction
    from parl_remote._functions.executor import map as map
    from parl_remote._functions.executor import remote_function as remote_function
    from parl_remote._functions.executor import wait as wait
    from parl_remote._future import RemoteFuture as RemoteFuture
    from parl_remote._object_ref import ObjectRef as ObjectRef
    from parl_remote._object_ref import put as put
    from parl_remote._pools.pool import ActorPool as ActorPool
    from parl_remote._pools.queue import Queue as Queue
    from parl_remote._remote_manager import RemoteManager as RemoteManager
    from parl_remote._serving import Serving as Serving
    from parl_remote._serving import as_remote as as_remote
    from parl_remote.errors import ActorError as ActorError
    from parl_remote.errors import ActorLost as ActorLost
    from parl_remote.errors import AuthenticationFailed as AuthenticationFailed
    from parl_remote.errors import ClusterUnreachable as ClusterUnreachable
    from parl_remote.errors import DeathCause as DeathCause
    from parl_remote.errors import DeathKind as DeathKind
    from parl_remote.errors import ExecutorBroken as ExecutorBroken
    from parl_remote.errors import FutureFunctionError as FutureFunctionError
    from parl_remote.errors import FutureGetRepeatedlyError as FutureGetRepeatedlyError
    from parl_remote.errors import FutureObjectEmpty as FutureObjectEmpty
    from parl_remote.errors import ItemLost as ItemLost
    from parl_remote.errors import NameTaken as NameTaken
    from parl_remote.errors import NoResources as NoResources
    from parl_remote.errors import NoSuchActor as NoSuchActor
    from parl_remote.errors import NotConnected as NotConnected
    from parl_remote.errors import ObjectLost as ObjectLost
    from parl_remote.errors import ProtocolError as ProtocolError
    from parl_remote.errors import QueueClosed as QueueClosed
    from parl_remote.errors import RemoteAttributeError as RemoteAttributeError
    from parl_remote.errors import RemoteCallError as RemoteCallError
    from parl_remote.errors import RemoteDeserializeError as RemoteDeserializeError
    from parl_remote.errors import RemoteError as RemoteError
    from parl_remote.errors import RemoteSerializeError as RemoteSerializeError
    from parl_remote.errors import ResourceError as ResourceError
    from parl_remote.errors import ResultTimeout as ResultTimeout
    from parl_remote.errors import SerializationError as SerializationError
    from parl_remote.errors import TooManyPendingCalls as TooManyPendingCalls
    from parl_remote.errors import VersionMismatch as VersionMismatch

_MODULES = {
    "connect": "_connect",
    "disconnect": "_connect",
    "get_global_client": "_connect",
    "DeathCause": "errors",
    "DeathKind": "errors",
    "remote_class": "_decorator",
    "submit": "_decorator",
    "with_options": "_decorator",
    "ActorPool": "_pools.pool",
    "Queue": "_pools.queue",
    **dict.fromkeys(("Executor", "RemoteFunction", "map", "remote_function", "wait"), "_functions.executor"),
    "RemoteManager": "_remote_manager",
    "Serving": "_serving",
    "as_remote": "_serving",
    "RemoteFuture": "_future",
    "get_actor": "_connect",
    "kill": "_connect",
    "ObjectRef": "_object_ref",
    "put": "_object_ref",
    **dict.fromkeys(
        (
            "ActorError",
            "ActorLost",
            "AuthenticationFailed",
            "ClusterUnreachable",
            "ExecutorBroken",
            "FutureFunctionError",
            "FutureGetRepeatedlyError",
            "FutureObjectEmpty",
            "ItemLost",
            "NameTaken",
            "NoResources",
            "NoSuchActor",
            "NotConnected",
            "ObjectLost",
            "ProtocolError",
            "QueueClosed",
            "RemoteAttributeError",
            "RemoteCallError",
            "RemoteDeserializeError",
            "RemoteError",
            "RemoteSerializeError",
            "ResourceError",
            "ResultTimeout",
            "SerializationError",
            "TooManyPendingCalls",
            "VersionMismatch",
        ),
        "errors",
    ),
}

__all__ = [
    "ActorError",
    "ActorLost",
    "ActorPool",
    "AuthenticationFailed",
    "ClusterUnreachable",
    "DeathCause",
    "DeathKind",
    "Executor",
    "ExecutorBroken",
    "FutureFunctionError",
    "FutureGetRepeatedlyError",
    "FutureObjectEmpty",
    "ItemLost",
    "NameTaken",
    "NoResources",
    "NoSuchActor",
    "NotConnected",
    "ObjectLost",
    "ObjectRef",
    "ProtocolError",
    "Queue",
    "QueueClosed",
    "RemoteAttributeError",
    "RemoteCallError",
    "RemoteDeserializeError",
    "RemoteError",
    "RemoteFunction",
    "RemoteFuture",
    "RemoteManager",
    "RemoteSerializeError",
    "ResourceError",
    "ResultTimeout",
    "SerializationError",
    "Serving",
    "TooManyPendingCalls",
    "VersionMismatch",
    "__version__",
    "as_remote",
    "connect",
    "disconnect",
    "get_actor",
    "get_global_client",
    "kill",
    "map",
    "put",
    "remote_class",
    "remote_function",
    "submit",
    "wait",
    "with_options",
]


require_core(f"parl-remote {__version__}", PARL_CORE)


def __getattr__(name: str) -> Any:
    path = _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module 'parl_remote' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"parl_remote.{path}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
