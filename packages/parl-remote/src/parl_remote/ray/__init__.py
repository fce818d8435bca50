"""Remote classes on Ray: Ray finds room, starts processes and carries messages; everything a user sees is as elsewhere.

    program                                        a Ray worker
    proxy, ActorRef  as on any cluster
    RayPath.submit   --Message as a Ray task-->    HostedObject.handle --> ActorHost, which holds the object
    RemoteFuture     <--Message as its result---

`library` is the only module that imports ray, when it is first needed: `pip install "parl-remote[ray]"`.
"""
