"""A program's side: from the proxy to the connection, and what becomes of actors that are lost."""
