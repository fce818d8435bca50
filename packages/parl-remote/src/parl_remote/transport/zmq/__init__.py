"""The transport between hosts: zmq on TCP, encrypted and authenticated by CURVE. The only package that imports zmq.

    ZmqChannel (DEALER) --- one TCP connection ---> ZmqListener (ROUTER, ZAP)

Both ends derive their CURVE key pairs from the cluster's key. The listener's ZAP handler lets in only the one public
key that its holders have; nothing of a peer is read before that. ZMTP's own heartbeats, answered by zmq's thread even
while Python computes, notice peers that vanish; a connection that is lost is closed and never silently made anew.
"""

from parl_remote.transport.zmq.channel import ZmqChannel
from parl_remote.transport.zmq.listener import ZmqListener

__all__ = ["ZmqChannel", "ZmqListener"]
