"""The command `parl`: `evaluate`, `play`, `export`, `import`, `plot`, `list`, `verify` and `migrate`.

The subcommands that train are in `_train`. An error that users can correct is shown as one line.
"""

import difflib
import io
import itertools
import json
import os
import re
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import gymnasium

from parl_core import backends
from parl_core._migration import Program, read, report, rewrite
from parl_core._version import __version__
from parl_core.atomic_write import atomic_write
from parl_core.cli._train import FILE, SEED, columns, resume, settings, train, tune_settings
from parl_core.errors import ParlError
from parl_core.export import FORMATS, export_run
from parl_core.importing import import_run
from parl_core.training._recipe_run import check_rendering, play
from parl_core.training.curves import Comparison, draw_comparison, write_page
from parl_core.training.recipes import NETWORKS, RECIPES, read_scores
from parl_core.training.results import verify
from parl_core.training.run import INTERRUPTED_EXIT_CODE, Run
from parl_core.training.settings import algorithm_named
from parl_core.training.trained import Trained

__all__ = ["parl"]

_USES_PARL = re.compile(rb"import (gym|parl)\b|from (gym|parl)\b")  # in a notebook


class _Group(click.Group):
    """Shows errors that a user can correct as one line; other exceptions are defects and keep their traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of the output has closed it, which click does not treat as an error
        except KeyboardInterrupt as interruption:
            message = " ".join(("Interrupted.", *getattr(interruption, "__notes__", ())))
            click.echo(f"\n{message}", err=True)
            raise SystemExit(INTERRUPTED_EXIT_CODE) from None
        except (ParlError, ImportError, OSError, gymnasium.error.Error) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="parl")
def parl() -> None:
    """Train, show and compare agents."""


for _training in (train, resume, settings, tune_settings):
    parl.add_command(_training)


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@parl.command("evaluate")
@click.argument("run", type=_FOLDER)
@click.option("--episodes", default=100, type=click.IntRange(1), help="Number of episodes.")
@click.option("--seed", default=0, type=SEED, help="Seed of the episodes.")
@click.option(
    "--max-steps",
    default=100_000,
    type=click.IntRange(1),
    help="Maximum steps of an episode; more are truncated.",
)
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="Use the agent from the end (or the last evaluation), not the best one.")
@click.option("--stochastic", is_flag=True, help="Draw actions as in training; default: the best ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every episode's return.")
def evaluate_run(
    run: Path, episodes: int, seed: int, backend: str | None, *, last: bool, as_json: bool, **how: Any
) -> None:
    """Play episodes with the best agent of the folder RUN, and print their mean return."""
    trained = Trained.read(run)
    backends.set_backend(backend or trained.backend)
    agent, make_env = trained.load(run / (trained.LAST if last else trained.FILE))
    result = play(agent, trained, episodes, seed=seed, make_env=make_env, **how)
    if as_json:
        found = {"env": trained.env, "mean": result.mean, "deviation": result.std, "returns": result.returns}
        found |= {"agent_means": result.agent_means} if result.agent_means else {}
        click.echo(json.dumps({**found, "lengths": [one.length for one in result.episodes]}))
    else:
        click.echo(f"{trained.env}: mean return {result.mean:.2f}, deviation {result.std:.2f}, {episodes} episodes")
        if result.agent_means:
            click.echo(f"mean return of each agent: {', '.join(f'{mean:.2f}' for mean in result.agent_means)}")


def _mp4(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:  # noqa: ARG001
    if value is not None and value.suffix.lower() != ".mp4":
        raise click.BadParameter(f"{value} is not a video: its name must end in .mp4.")
    return value


@parl.command("play")
@click.argument("run", type=_FOLDER)
@click.option("--video", type=FILE, callback=_mp4, help="Write FILE.mp4 instead of opening a window.")
@click.option("--episodes", default=1, type=click.IntRange(1), help="Number of episodes; each has a separate video.")
@click.option("--seed", default=0, type=SEED, help="Seed of the episodes.")
@click.option(
    "--max-steps",
    default=100_000,
    type=click.IntRange(1),
    help="Maximum steps of an episode; more are truncated.",
)
@click.option("--backend", help="torch or paddle; default: the one that trained the agent.")
@click.option("--last", is_flag=True, help="Use the agent from the end, not the best one.")
@click.option("--stochastic", is_flag=True, help="Draw actions as in training; default: the best ones.")
def play_run(
    run: Path, video: Path | None, episodes: int, seed: int, backend: str | None, *, last: bool, **how: Any
) -> None:
    """Show the agent of the folder RUN in a window, or write a video of it."""
    trained = Trained.read(run)
    mode = "human" if video is None else "rgb_array"
    check_rendering(trained, mode)  # before a framework is loaded
    backends.set_backend(backend or trained.backend)
    agent, make_env = trained.load(run / (trained.LAST if last else trained.FILE), mode)
    for number in range(episodes):
        if video is None:
            result = play(agent, trained, 1, seed=seed + number, make_env=make_env, **how)
        else:
            target = video if episodes == 1 else video.with_stem(f"{video.stem}-{number}")
            result = _record(target, agent, trained, make_env, seed + number, how)
            click.echo(str(target))
        click.echo(f"return {result.mean:.2f}, {result.episodes[0].length} steps")


def _record(target: Path, agent: Any, trained: Trained, make_env: Any, seed: int, how: Any) -> Any:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as new:  # the recorder chooses the names of its files
        folder = str(Path(new) / "video")  # the recorder creates it, and would warn of an existing one

        def recorded() -> Any:
            return gymnasium.wrappers.RecordVideo(make_env(), folder, episode_trigger=lambda _: True)

        result = play(agent, trained, 1, seed=seed, make_env=recorded, **how)
        (made,) = Path(folder).glob("*.mp4")
        made.replace(target)
    return result


@parl.command("export")
@click.argument("run", type=_FOLDER)
@click.option("--to", default="numpy", type=click.Choice(list(FORMATS)), help="The format.")
@click.option(
    "--out",
    type=FILE,
    help="File (of paddle-inference a new folder); default: in RUN.",
)
@click.option("--last", is_flag=True, help="Use the agent from the end (or the last evaluation), not the best one.")
@click.option("--observations", default=1000, type=click.IntRange(1), help="Number of actions to compare.")
@click.option("--seed", default=0, type=click.IntRange(0, 2**31 - 1), help="Seed of the episodes for the comparison.")
def export_agent(run: Path, to: str, out: Path | None, last: bool, observations: int, seed: int) -> None:
    """Write the best agent of the folder RUN as a file that runs without PARL's training parts.

    numpy is read by parl_core.policy, with numpy alone; onnx by ONNX Runtime; torch-export by torch.export.load;
    paddle-inference by paddle.inference. The file gets its name after a fresh process has computed the agent's actions
    with it.
    """
    written = export_run(run, to, out, last=last, observations=observations, seed=seed)
    click.echo(
        f"{written.path}: {written.size} bytes; of {written.observations} actions {written.equal} are the agent's, "
        f"numbers differ by at most {written.difference:.2g}"
    )


@parl.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("env")
@click.option("--algorithm", help="Algorithm of a checkpoint of PARL 2.x, which does not contain it.")
@click.option(
    "--activation", default="", help="Activation of its hidden layers; default: tanh for PPO and A2C, else relu."
)
@click.option(
    "--normalization",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of Stable-Baselines3's VecNormalize.",
)
@click.option("--backend", help="torch or paddle; default: the one installed.")
@click.option("--env-module", "module", default="", help="Import this module first: it registers ENV.")
@click.option("--run", type=FILE, help="Folder for the agent; default: a new one in --runs.")
@click.option("--runs", default="runs", type=FILE, help="Folder of all runs.")
def import_agent(
    file: Path,
    env: str,
    algorithm: str | None,
    activation: str,
    normalization: Path | None,
    backend: str | None,
    module: str,
    run: Path | None,
    runs: Path,
) -> None:
    """Import the agent in FILE, which acts in the environment ENV, and write a run folder for it.

    FILE is a zip file of Stable-Baselines3 (DQN, PPO, A2C, SAC, TD3, DDPG), or a checkpoint of PARL 2.x on torch or
    paddle, of a model that is a chain of layers as in PARL's examples. It is read as data; no code in it is run.

    \b
    parl import ppo_cartpole.zip CartPole-v1
    parl import model.ckpt CartPole-v1 --algorithm dqn
    """  # noqa: D301 - click's mark of a paragraph that keeps its lines
    if backend:
        backends.set_backend(backend)
    named = algorithm_named(algorithm, tuple(NETWORKS)) if algorithm else ""
    there = runs.expanduser().exists()
    folder = run or Run(f"imported-{file.stem}", runs).path
    try:
        found = import_run(
            file, env, folder, algorithm=named, activation=activation, normalization=normalization, module=module
        )
    except BaseException:
        with suppress(OSError):
            for made in () if run else (folder,) if there else (folder, folder.parent):
                made.rmdir()
        raise
    click.echo(f"{found.folder}: {found.algorithm} with {found.parameters} numbers")


@parl.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=FILE)
@click.option("-o", "--output", default="curves.png", type=FILE, help="FILE.png, .svg, .pdf, or .html.")
@click.option("--group", is_flag=True, help="Single runs that differ by their seed alone become one curve with a band.")
@click.option("--title", default="", help="Title of the picture.")
@click.option("--goal", type=float, help="Draw a line at this return.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def plot(runs: tuple[Path, ...], output: Path, *, group: bool, title: str, goal: float | None, as_json: bool) -> None:
    """Draw the learning curves of runs and of groups of runs, and print them as a table.

    RUN is the folder of a run, or one that holds the runs of a group, such as that of `parl train --seeds`. A file
    that ends in .html shows values at the mouse pointer, and needs no network.
    """
    found = Comparison.read(runs, by_settings=group)
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix.lower() == ".html":
        write_page(found, output, title, goal)
    else:
        draw_comparison(found, output, title, goal)
    if as_json:
        click.echo(json.dumps({"path": str(output), "runs": found.rows()}))
    else:
        click.echo(found.table())
        click.echo(str(output))


@parl.command("list")
@click.option("--runs", type=FILE, help="List the runs in this folder instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_parts(runs: Path | None, *, as_json: bool) -> None:
    """List what is installed and the presets of `parl train`; or with --runs what was trained."""
    if runs is not None:
        folders = sorted(path for path in runs.iterdir() if path.is_dir())
        found = Comparison.read([path for path in folders if _is_run(path)])
        click.echo(json.dumps(found.rows()) if as_json else found.table())
        return
    installed = {name: list(backends.load(name).algorithms.__all__) for name in backends.installed()}
    scores = read_scores()
    presets: list[dict[str, Any]] = []
    for (algorithm, env), recipe in RECIPES.items():
        if env == "*" or env in gymnasium.registry or any(mark in env for mark in "/-"):
            facts = {"steps": recipe.steps, "goal": recipe.goal, "source": recipe.source}
            presets.append({"algorithm": algorithm.lower(), "env": env, **facts, "score": scores.get((algorithm, env))})
    if as_json:
        click.echo(json.dumps({"backends": installed, "presets": presets}))
        return
    for name, algorithms in installed.items():
        click.echo(f"backend {name}: {', '.join(algorithms)}")
    if not installed:
        click.echo("no backend is installed; choose one: pip install parl-torch, pip install parl-paddle")
    lines = [("parl train …", "steps", "goal", "reached here (seeds)", "source")]
    for one in presets:
        goal, score = one["goal"], one["score"]
        reached = "not measured"
        if score is not None:
            reached = f"{score['mean']:g} [{score['low']:g}, {score['high']:g}] ({score['seeds']})"
        name = f"recipe {one['algorithm']} {one['env']}"
        lines.append((name, str(one["steps"]), "-" if goal is None else f"{goal:g}", reached, one["source"]))
    click.echo(columns(lines))
    click.echo(
        "Reached: the interquartile mean of returns after training over seeds on torch, and its 95 % interval; the "
        "runs are in benchmarks/learning/results."
    )
    click.echo("Other environments get settings by their kind; `parl settings ALGORITHM ENV` shows them.")


def _is_run(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in ("metrics.jsonl", "*/metrics.jsonl"))


@parl.command("verify")
@click.argument("result", type=FILE)
def verify_result(result: Path) -> None:
    """Repeat the runs of RESULT from their record and report whether they lie inside its interval.

    RESULT is the file of one run (results/dqn-cartpole/torch-100.json), which is compared with the range of all runs of
    its row, or a row (results/dqn-cartpole/torch), whose interval is that of its interquartile mean. The exit status
    is 1 if the repetition lies outside.
    """

    def show_progress(run: str, share: float) -> None:
        click.echo(f"{run}: {share:.0%}", err=True)

    found = verify(result, progress=show_progress)
    click.echo(str(found))
    if not found.inside:
        raise SystemExit(1)


@parl.command()
@click.option("--write", is_flag=True, help="Change the files; otherwise show what would change as a diff.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, path_type=Path))
def migrate(files: tuple[Path, ...], write: bool) -> None:
    """Report the lines to change in programs of PARL 1.x and 2.x; --write makes the mechanical changes.

    FILE is a Python file, or a folder with some; hidden folders and virtual environments in it are left out. Pass all
    files from a program together: whether environments need a CompatWrapper in the file that makes them depends on the
    file that steps them. Nothing is run.

    The exit status is 1 if changes by hand remain, a file cannot be read, or there is no Python file.
    """
    programs, encodings, unreadable = [], {}, 0
    paths = _all(files)
    if not paths:
        raise click.ClickException(f"no Python file in {', '.join(map(str, files))}")
    for file_path in paths:
        try:
            program, encodings[str(file_path)] = _read(file_path)
            programs.append(program)
        except click.ClickException as error:
            error.show()
            unreadable += 1
    findings = report(programs, written=write)
    for path, found in findings.items():
        for finding in found:
            click.echo(f"{path}:{finding.line}: {finding.message}")
    changed = rewrite(programs)
    for program in programs:
        new, encoding = changed.get(program.path), encodings[program.path]
        if new is not None and write:
            with atomic_write(Path(program.path).resolve()) as file:  # a link stays a link
                file.write(new.encode(encoding))
        elif new is not None:
            bare = encoding.removesuffix("-sig")  # a byte order mark belongs to the first line
            before, after = (text.encode(encoding).decode(bare) for text in (program.source, new))
            click.echo(_diff(program.path, before, after), nl=False)
    left = sum(not finding.mechanical for found in findings.values() for finding in found)
    changes = "changed" if write else "would change with --write"
    files_read, lines_left = _counted(len(programs), "file"), _counted(left, "line")
    click.echo(f"{files_read}: {len(changed)} {changes}, {lines_left} to change by hand", err=True)
    if unreadable:
        click.echo(f"{_counted(unreadable, 'file')} not read", err=True)
    sys.exit(1 if left or unreadable else 0)


def _diff(path: str, before: str, after: str) -> str:
    """Return a unified diff in the form that `patch` reads: lines end at newlines only, and the last may lack one."""
    old, new = (list(io.StringIO(text, newline="\n")) for text in (before, after))
    rows = difflib.unified_diff(old, new, path, path)
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _all(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files among paths and in the folders among them, each once, whatever leads to it."""
    found = (sorted(_below(path)) if path.is_dir() else [path] for path in paths)
    by_target: dict[Path, Path] = {}
    for path in itertools.chain.from_iterable(found):
        by_target.setdefault(path.resolve(), path)
    return list(by_target.values())


def _below(folder: Path) -> Iterator[Path]:
    """Yield the Python files in a folder, without those of hidden folders and of environments of Python.

    Notebooks with code that may have to change are among them, so that they are named.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_of_others(Path(place, name))]
        for path in (Path(place, name) for name in names):
            if path.suffix == ".py" or (path.suffix == ".ipynb" and _USES_PARL.search(path.read_bytes())):
                yield path


def _is_of_others(folder: Path) -> bool:
    is_environment = any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
    return is_environment or folder.name.startswith(".") or folder.name in ("__pycache__", "site-packages")


def _read(path: Path) -> tuple[Program, str]:
    """Return a program, and the encoding of its file."""
    if path.suffix == ".ipynb":  # its JSON is valid Python without findings
        raise click.ClickException(
            f"{path} is a notebook: make a script of it by `jupyter nbconvert --to script {path}`"
        )
    try:
        content = path.read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        return read(str(path), content.decode(encoding)), encoding
    except OSError as error:  # such as a link that leads nowhere, which some editors leave
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:  # ValueError: another encoding, or a NUL byte
        raise click.ClickException(f"{path} is not Python 3 in UTF-8, or in the encoding it names: {error}") from error
    except RecursionError as error:
        raise click.ClickException(f"{path} has an expression that is nested too deeply to be read") from error
