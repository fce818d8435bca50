"""The facade: one name for every part of PARL that is installed, each loaded at first use.

    import parl
       ├─ Model, Algorithm, Agent,                       parl-torch or parl-paddle (`parl.set_backend`, `PARL_BACKEND`)
       │  layers, networks, algorithms, optim
       ├─ remote_class, connect, put, ActorLost, …       parl-remote: all its public names
       └─ training, utils, env                           parl-core

Importing it imports no framework, no zmq and no gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parl import _names
from parl_core._version import __version__

if TYPE_CHECKING:  # what type checkers read: the contracts, with any backend or with none
    from parl import algorithms as algorithms
    from parl import env as env
    from parl import layers as layers
    from parl import networks as networks
    from parl import optim as optim
    from parl import training as training
    from parl import utils as utils
    from parl_core.agent import Agent as Agent
    from parl_core.algorithm import Algorithm as Algorithm
    from parl_core.backends import set_backend as set_backend
    from parl_core.model import Model as Model
    from parl_remote import ActorError as ActorError
    from parl_remote import ActorLost as ActorLost
    from parl_remote import ActorPool as ActorPool
    from parl_remote import AuthenticationFailed as AuthenticationFailed
    from parl_remote import ClusterUnreachable as ClusterUnreachable
    from parl_remote import DeathCause as DeathCause
    from parl_remote import DeathKind as DeathKind
    from parl_remote import Executor as Executor
    from parl_remote import ExecutorBroken as ExecutorBroken
    from parl_remote import FutureFunctionError as FutureFunctionError
    from parl_remote import FutureGetRepeatedlyError as FutureGetRepeatedlyError
    from parl_remote import FutureObjectEmpty as FutureObjectEmpty
    from parl_remote import ItemLost as ItemLost
    from parl_remote import NameTaken as NameTaken
    from parl_remote import NoResources as NoResources
    from parl_remote import NoSuchActor as NoSuchActor
    from parl_remote import NotConnected as NotConnected
    from parl_remote import ObjectLost as ObjectLost
    from parl_remote import ObjectRef as ObjectRef
    from parl_remote import ProtocolError as ProtocolError
    from parl_remote import Queue as Queue
    from parl_remote import QueueClosed as QueueClosed
    from parl_remote import RemoteAttributeError as RemoteAttributeError
    from parl_remote import RemoteCallError as RemoteCallError
    from parl_remote import RemoteDeserializeError as RemoteDeserializeError
    from parl_remote import RemoteError as RemoteError
    from parl_remote import RemoteFunction as RemoteFunction
    from parl_remote import RemoteFuture as RemoteFuture
    from parl_remote import RemoteManager as RemoteManager
    from parl_remote import RemoteSerializeError as RemoteSerializeError
    from parl_remote import ResourceError as ResourceError
    from parl_remote import ResultTimeout as ResultTimeout
    from parl_remote import SerializationError as SerializationError
    from parl_remote import Serving as Serving
    from parl_remote import TooManyPendingCalls as TooManyPendingCalls
    from parl_remote import VersionMismatch as VersionMismatch
    from parl_remote import as_remote as as_remote
    from parl_remote import connect as connect
    from parl_remote import disconnect as disconnect
    from parl_remote import get_actor as get_actor
    from parl_remote import get_global_client as get_global_client
    from parl_remote import kill as kill
    from parl_remote import map as map
    from parl_remote import put as put
    from parl_remote import remote_class as remote_class
    from parl_remote import remote_function as remote_function
    from parl_remote import submit as submit
    from parl_remote import wait as wait
    from parl_remote import with_options as with_options

__all__ = [
    "ActorError",
    "ActorLost",
    "ActorPool",
    "Agent",
    "Algorithm",
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
    "Model",
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
    "algorithms",
    "as_remote",
    "connect",
    "disconnect",
    "env",
    "get_actor",
    "get_global_client",
    "kill",
    "layers",
    "map",
    "networks",
    "optim",
    "put",
    "remote_class",
    "remote_function",
    "set_backend",
    "submit",
    "training",
    "utils",
    "wait",
    "with_options",
]

_names.refuse_old_distribution()
_names.answer_old_paths()
_names.offer_to_joblib()


def __getattr__(name: str) -> Any:
    if name in _names.SUBMODULES or f"parl.{name}" in _names.OLD_PACKAGES:
        return import_module(f"parl.{name}")
    if name in _names.BACKEND:
        return getattr(_names.backends().current(), name)
    if name == "set_backend":
        return _names.backends().set_backend
    if name in __all__:  # the only remaining name
        return _names.from_remote(name)
    raise _names.unknown(name)


def __dir__() -> list[str]:
    return sorted(__all__)
