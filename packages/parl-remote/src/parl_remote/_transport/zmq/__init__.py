"""The transport between hosts: zmq on TCP, encrypted and authenticated by CURVE. The only package that imports zmq.

    ZmqChannel (DEALER) --- one TCP connection ---> ZmqListener (ROUTER, ZAP)

Both ends derive their CURVE key pairs from the cluster's key. The listener's ZAP handler accepts only the one public
key that holders of that key have; no data of a peer is read before that. ZMTP's own heartbeats, answered by zmq's
thread even while Python computes, detect peers that vanish; a lost connection is closed and never silently
re-established.
"""

from parl_remote._transport.zmq.channel import ZmqChannel
from parl_remote._transport.zmq.listener import ZmqListener

__all__ = ["ZmqChannel", "ZmqListener"]
