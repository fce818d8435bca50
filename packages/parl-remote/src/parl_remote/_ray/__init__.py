"""Remote classes on Ray, which schedules actors, starts processes and carries messages; the interface is the same.

    program                                        a Ray worker
    proxy, ActorRef  as on any cluster
    RayPath.submit   --Message as a Ray task-->    HostedObject.handle --> ActorHost, which holds the object
    RemoteFuture     <--Message as its result---

`path` is the only module that imports ray, on first use: `pip install "parl-remote[ray]"`.
"""
