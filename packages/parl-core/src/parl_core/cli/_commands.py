"""The command `parl` with all its subcommands; what users can set right is shown as one line."""

import click
import gymnasium

from parl_core._version import __version__
from parl_core.cli._agents import evaluate_run, export_agent, import_agent, play_run
from parl_core.cli._migrate import migrate
from parl_core.cli._runs import list_parts, plot, verify_result
from parl_core.cli._train import resume, settings, train, tune_settings
from parl_core.errors import ParlError

__all__ = ["parl"]


class _Group(click.Group):
    """Shows what a user can set right as one line; whatever else is raised is a defect and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ParlError, ImportError, OSError, gymnasium.error.Error) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="parl")
def parl() -> None:
    """Train agents, look at them, and compare them."""


for _command in (
    train,
    resume,
    settings,
    evaluate_run,
    play_run,
    plot,
    tune_settings,
    list_parts,
    verify_result,
    export_agent,
    import_agent,
    migrate,
):
    parl.add_command(_command)
