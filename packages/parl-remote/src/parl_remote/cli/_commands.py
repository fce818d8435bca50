"""The command `xparl`: its subcommands, each imported from its module on first use."""

from __future__ import annotations

import errno
import functools
import importlib
import os
from typing import Any

import click

from parl_remote._config import BadVariable
from parl_remote._system.texts import visible, visible_output
from parl_remote._transport.addresses import Address
from parl_remote._version import __version__

__all__ = ["main", "parsed"]

# The order of `xparl --help`: a cluster's life, then looking into it, then reaching into it.
_MODULES = {
    "start": "start",
    "connect": "start",
    "status": "show",
    "stop": "stop",
    "up": "up",
    "down": "up",
    "list": "show",
    "logs": "logs",
    "top": "top",
    "monitor": "monitor",
    "events": "logs",
    "acknowledge": "logs",
    "timeline": "recordings",
    "replay": "recordings",
    "kill": "end",
    "drain": "end",
    "doctor": "doctor",
    "key": "start",
}


_DRAWN = frozenset({"top", "doctor"})  # they have colours, and show what they quote by themselves


class _Commands(click.Group):
    """A group that imports a command's module when the command is called, so that each command loads only its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _MODULES:
            return None
        module = importlib.import_module(f"parl_remote.cli._{_MODULES[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return _with_lines(command if cmd_name in _DRAWN else _with_visible_output(command))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _MODULES and not args[0].startswith("-"):
            known = ", ".join(_MODULES)
            ctx.fail(f"there is no command {args[0]!r}; xparl has {known}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BadVariable as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            name = "the output" if error.filename is None else os.fsdecode(error.filename)
            raise click.ClickException(f"{name} cannot be written: {error.strerror}") from error
        except click.ClickException as error:
            error.message = visible(error.message)  # type: ignore[misc]  # nothing else refers to it
            raise


def _with_visible_output(command: click.Command) -> click.Command:
    """Make control characters visible in the output of a command: others have written the names, reasons and logs."""
    callback = command.callback
    if callback is not None and not hasattr(callback, "__wrapped__"):
        inner = callback

        @functools.wraps(inner)
        def shown(*arguments: Any, **options: Any) -> Any:
            with visible_output():
                return inner(*arguments, **options)

        command.callback = shown
    return command


def _with_lines(command: click.Command) -> click.Command:
    """Keep the lines of a command's examples: put click's one-character marker for the two in its raw docstring."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    return command


def parsed(address: str) -> Address:
    """Return the address that an option names.

    Raises:
        click.UsageError: It is none.
    """
    try:
        return Address.parse(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="parl-remote")
def main() -> None:
    r"""Start, join, inspect and stop clusters of remote actors.

    A program on one machine does not need these commands: parl.connect() starts a private cluster.

    \b
    Examples:
      xparl start --port 8037                 a cluster with all CPUs of this host
      xparl connect --address first:8037      add another host's CPUs to it
      xparl up hosts.toml                     the same on all hosts of a file, over ssh
      xparl status                            nodes, slots, programs
      xparl logs -f trainer                   the output of an actor
      xparl events -f                         nodes that join or are lost, actors that restart
      xparl doctor --address first:8037       problems and their remedies
    """


_with_lines(main)
