"""The common parts of all links: the loop, the handshake, requests and answers."""
