"""The command `parl export`."""

from pathlib import Path

import click

from parl_core.export import FORMATS, export_run

__all__ = ["export_agent"]


@click.command("export")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", default="numpy", type=click.Choice(list(FORMATS)), help="The format.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File (of paddle-inference a new folder); default: in RUN.",
)
@click.option("--last", is_flag=True, help="The agent as it was at the end (or the last evaluation), not the best one.")
@click.option("--observations", default=1000, type=click.IntRange(1), help="How many actions are compared.")
@click.option("--seed", default=0, type=click.IntRange(0, 2**31 - 1), help="Of the episodes that give them.")
def export_agent(run: Path, to: str, out: Path | None, last: bool, observations: int, seed: int) -> None:
    """Write the best agent of the folder RUN as a file that runs without PARL's training parts.

    numpy is read by parl_core.policy, with numpy alone; onnx by ONNX Runtime; torch-export by torch.export.load;
    paddle-inference by paddle.inference. The file gets its name when a fresh process has acted with it as the agent
    does.
    """
    written = export_run(run, to, out, last=last, observations=observations, seed=seed)
    click.echo(
        f"{written.path}: {written.size} bytes; of {written.observations} actions {written.equal} are the agent's, "
        f"numbers differ by at most {written.difference:.2g}"
    )
