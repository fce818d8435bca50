"""`xparl key`: a new cluster key, for clusters whose nodes are started by somebody else."""

from __future__ import annotations

import click

from parl_remote.security import ClusterKey

__all__ = ["command"]


@click.command("key")
def command() -> None:
    r"""Print a new cluster key.

    You need none for `xparl start`, which makes one itself. Where a job script, a secret store or a configuration
    management hands the same key to all nodes, make it here: start, connect and programs take it from --key_file,
    PARL_KEY_FILE or PARL_KEY.

    \b
    Example:
      (umask 077; xparl key > cluster.key)
      PARL_KEY_FILE=cluster.key xparl start --port 8037 --host 0.0.0.0
    """
    click.echo(ClusterKey.generate().to_text())
