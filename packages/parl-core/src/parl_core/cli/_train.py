"""`parl train`, `parl resume`, `parl settings` and `parl tune`, and the options by which they describe a run."""

import json
import math
import os
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

from parl_core import backends
from parl_core.checks import check_all_known
from parl_core.errors import HyperparameterError
from parl_core.training._recipe_run import ACTING_APART, RecipeRun, preset, with_actors
from parl_core.training._seeds import seeds_of, summary_of, train_seeds
from parl_core.training.apex import ApexSettings
from parl_core.training.events import Callback
from parl_core.training.logs import TRACKERS, JsonOutput, tracker
from parl_core.training.off_policy import OffPolicySettings
from parl_core.training.on_policy import OnPolicySettings
from parl_core.training.recipes import NETWORKS, RECIPES
from parl_core.training.run import Run
from parl_core.training.settings import algorithm_named, as_text, contract_of, read_setting, settings_of, toml_lines
from parl_core.training.trained import folder_of_module
from parl_core.training.tuning import default_ranges, read_range, tune

__all__ = ["FILE", "SEED", "columns", "resume", "settings", "train", "tune_settings"]


LAST_SEED = 2**31 - 1
SEED = click.IntRange(0, LAST_SEED)
FILE = click.Path(path_type=Path)
_Command = Callable[..., Any]


def options(*chosen: _Command) -> _Command:
    """Put several options on a command, in this order in its help."""

    def put(command: _Command) -> _Command:
        for option in reversed(chosen):
            command = option(command)
        return command

    return put


def _finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


def _address(_context: click.Context, _option: click.Parameter, value: str) -> str:
    host, _, port = value.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 2**16
    if value and not value.startswith("ray") and not (host and is_port):
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as localhost:8010.")
    return value


def pairs(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE options by name."""
    for one in given:
        if "=" not in one:
            raise click.BadParameter(f"{one!r} is not NAME=VALUE.")
    return {name.strip(): value for name, _, value in (one.partition("=") for one in given)}


def _values(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    """Return NAME=VALUE options by name, numbers and flags as such."""
    return {name: read_setting(value) for name, value in pairs(context, option, given).items()}


ENV_OPTION = click.option(
    "--env-option",
    "env_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_values,
    help="An option of ENV itself, such as continuous=true. May be repeated.",
)

WHAT = options(
    click.argument("algorithm", metavar="[ALGORITHM]", required=False),
    click.argument("env", metavar="[ENV]", required=False),
    click.option(
        "--config",
        type=FILE,
        help="A TOML file with algorithm, env, steps, … and a table [settings], or the folder of a run to repeat; "
        "options override it.",
    ),
    click.option(
        "--set",
        "given",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="Another setting than the preset's, such as lr=3e-4 or network.width=256; `parl settings ALGORITHM ENV` "
        "lists them. May be repeated.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(1),
        help="Environment steps (of logged data: updates) at least; default: the preset's. The last rollout, or step "
        "of all environments, is completed; where the preset's first rollout has more steps, rollouts are shortened "
        "to the next number that suffices, unless --set gives their size. Updates from a replay memory begin after "
        "half of the steps at the latest, unless --set gives learning_starts.",
    ),
    click.option(
        "--goal",
        type=float,
        callback=_finite,
        help="Stop when two evaluations in a row reach this return; default: the preset's.",
    ),
    click.option("--backend", help="torch or paddle; default: the one installed."),
    click.option("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one."),
    click.option("--compile", "compiled", is_flag=True, help="Compile the updates."),
    click.option("--env-module", "module", help="Import this module first: it registers ENV."),
    ENV_OPTION,
    click.option("--data", help="Logged transitions, FILE.npz or minari:NAME, for algorithms that learn from them."),
)
"""The options that describe a run; `asked_by` reads them."""


def asked_by(
    *,
    given: Mapping[str, Any],
    env_options: Mapping[str, Any],
    config: Path | None = None,
    device: str | None = None,
    compiled: bool = False,
    actors: int | None = None,
    checkpoint_every: int = 10_000,
    **options: Any,
) -> RecipeRun:
    """Return the run that the options describe; options override a configuration.

    Raises:
        click.UsageError: Algorithm or environment are missing.
        ParlError: There is no such algorithm, or a configuration cannot be read.
    """
    read = _read_config(config) if config is not None else {}
    values = read | {name: value for name, value in options.items() if value is not None}
    for name in ("algorithm", "env"):
        if not values.get(name):
            raise click.UsageError(f"{name.upper()} is missing: parl train ALGORITHM ENV, or --config with both.")
    values["env_options"] = {**read.get("env_options", {}), **env_options}
    values["module_folder"] = folder_of_module(values["env"], values.get("module", ""))
    _refuse_sizes_twice("--set", given)
    settings = {**read.get("given", {}), **given}
    settings |= {"device": device} if device else {}
    settings |= {"compile": True} if compiled else {}
    if values.get("backend"):
        backends.set_backend(values["backend"])
    if (data := values.get("data", "")) and not data.startswith("minari:"):
        values["data"] = str(Path(data).expanduser().absolute())  # the run may be resumed from another folder
    current = backends.current()
    values["backend"] = current.name
    values["algorithm"] = algorithm_named(values["algorithm"], current.algorithms.__all__, tuple(NETWORKS))
    if actors:
        settings |= _actors_as_settings(values, actors, settings)
    return RecipeRun(**{**values, "checkpoint_every": checkpoint_every, "given": settings})


def _actors_as_settings(values: Mapping[str, Any], actors: int, given: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings of loops whose actors affect learning."""
    loop = preset(values["algorithm"], values["env"], values.get("module", ""), values["env_options"]).loop
    if not isinstance(loop, ACTING_APART) or "n_actors" in given:
        return {}
    changed = with_actors(loop, actors)
    groups = {} if changed.groups is None or "groups" in given else {"groups": changed.groups}
    return {**groups, "n_actors": actors}


_TYPES: dict[str, tuple[type, ...]] = {
    "a text": (str,),
    "a whole number": (int,),
    "a number": (int, float),
    "a table": (dict,),
}
_IN_A_CONFIG = {
    "algorithm": "a text",
    "env": "a text",
    "seed": "a whole number",
    "steps": "a whole number",
    "goal": "a number",
    "backend": "a text",
    "env_module": "a text",
    "env_options": "a table",
    "data": "a text",
    "settings": "a table",
}


def _read_config(path: Path) -> dict[str, Any]:
    """Return the values of a configuration by the names of `RecipeRun`.

    Raises:
        HyperparameterError: It is not TOML, has another key, or a value of another type.
    """
    if path.is_dir():
        asked = RecipeRun.read(path)
        return {
            name: value
            for name, value in vars(asked).items()
            if name not in ("recipe", "extended_to", "checkpoint_every")
        }
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HyperparameterError(f"--config {path}: there is no such file, nor the folder of a run") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HyperparameterError(f"{path} is not a TOML file: {error}") from error
    check_all_known(str(path), values, tuple(_IN_A_CONFIG))
    for name, value in values.items():
        if type(value) not in _TYPES[_IN_A_CONFIG[name]]:
            raise HyperparameterError(f"{path}: {name} is {_IN_A_CONFIG[name]}, got {value!r}")
    found = {
        ("module" if name == "env_module" else name): value for name, value in values.items() if name != "settings"
    }
    if "env_options" in found:  # TOML has no None; its text is read as on the command line
        found["env_options"] = {name: None if one == "none" else one for name, one in found["env_options"].items()}
    given = dict(_flat(values.get("settings", {})))
    _refuse_sizes_twice(str(path), given)
    return found | {"given": given}


def _refuse_sizes_twice(place: str, given: Mapping[str, Any]) -> None:
    """Reject both sizes and width or depth of hidden layers in one place; those of the other place are changed.

    Raises:
        HyperparameterError: Both are given; the message names them.
    """
    sizes = [name for name in given if name in ("hidden", "network.hidden")]
    shapes = [name for name in given if name in ("width", "depth", "network.width", "network.depth")]
    if sizes and shapes:
        raise HyperparameterError(
            f"{place} has {sizes[0]}={as_text(given[sizes[0]])} and {shapes[0]}={as_text(given[shapes[0]])}, both of "
            "which are sizes of the hidden layers: leave one out"
        )


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(before + name, value)]
    return found


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of text; the last column is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


@click.command()
@WHAT
@options(
    click.option("--seed", type=SEED, help="Seed of weights, environments and sampling; default 0."),
    click.option(
        "--seeds",
        type=click.IntRange(2),
        help="Train this many runs in parallel, with seeds from --seed on; with a table and a plot of all.",
    ),
    click.option(
        "--jobs", type=click.IntRange(1), help="Number of parallel runs with --seeds; default: the number of cores."
    ),
    click.option(
        "--actors",
        type=click.IntRange(0),
        help="Remote actors for the environments; 0: this process. Default: none, of IMPALA, A3C and ApeX as many as "
        "the preset has.",
    ),
    click.option(
        "--cluster",
        default="",
        callback=_address,
        help="host:port of a running cluster for the actors, or for the runs of --seeds.",
    ),
    click.option(
        "--track", multiple=True, type=click.Choice(TRACKERS), help="Log to this tracker as well. May be repeated."
    ),
    click.option("--run", type=FILE, help="Folder of this run; default: a new one in --runs."),
    click.option("--runs", default="runs", type=FILE, help="Folder of all runs."),
    click.option("--stop-after", type=click.IntRange(1), help="Stop at this step; `parl resume` continues."),
    click.option("--checkpoint-every", default=10_000, type=click.IntRange(1), help="Steps between two checkpoints."),
    click.option("--videos", type=click.IntRange(1), help="Record a video after each N evaluations."),
    click.option("--json", "as_json", is_flag=True, help="Print only JSON, one object per line."),
)
def train(
    *,
    seeds: int | None,
    jobs: int | None,
    run: Path | None,
    runs: Path,
    cluster: str,
    track: Sequence[str],
    stop_after: int | None,
    videos: int | None,
    as_json: bool,
    **what: Any,
) -> None:
    """Train ALGORITHM on the Gymnasium environment ENV; its files go to a new folder.

    \b
    parl train ppo CartPole-v1
    parl train sac Pendulum-v1 --set lr=3e-4 --set network.width=256
    parl train dqn CartPole-v1 --seeds 5
    parl train impala CartPole-v1 --actors 8 --cluster host:8010
    parl train apex CartPole-v1 --actors 8
    """  # noqa: D301 - click's mark of a paragraph that keeps its lines
    if jobs is not None and seeds is None:
        raise click.UsageError("--jobs is the number of parallel runs of --seeds: give both.")
    exact = None if run is None else Run.at(run)
    asked = asked_by(**what)
    if seeds is not None and asked.seed + seeds - 1 > LAST_SEED:
        raise click.UsageError(
            f"--seeds {seeds} with --seed {asked.seed} goes on to {asked.seed + seeds - 1}, and the largest seed is "
            f"{LAST_SEED}: give a smaller one."
        )
    if not as_json:
        _warn_of_a_short_run(asked)
    how = {"actors": what["actors"], "max_steps": stop_after, "videos": videos}
    name = f"{asked.algorithm.lower()}-{asked.env.replace('/', '-').replace(':', '-')}"
    if seeds is not None:
        with exact or Run(name, runs) as folder, _interrupted_without_reader():
            asked.made()  # errors are reported before there is a folder
            every = range(asked.seed, asked.seed + seeds)
            _train_seeds(folder, asked, every, jobs=jobs, cluster=cluster, track=track, as_json=as_json, **how)
        return
    with exact or Run(name, runs) as folder, _interrupted_without_reader():
        _train_in(folder, asked, track=track, as_json=as_json, cluster=cluster, **how)


def _warn_of_a_short_run(asked: RecipeRun) -> None:
    loop, usual = asked.recipe.loop, replace(asked, steps=None).recipe.loop
    if isinstance(loop, OnPolicySettings) and loop.n_steps < usual.n_steps:
        click.echo(
            f"--steps {asked.steps} is less than one rollout of the preset: n_steps is {loop.n_steps}, not "
            f"{usual.n_steps}, and training ends after {loop.total_steps} steps",
            err=True,
        )
    if isinstance(loop, (OffPolicySettings, ApexSettings)) and loop.learning_starts < usual.learning_starts:
        click.echo(
            f"--steps {asked.steps} is less than twice the preset's learning_starts: learning_starts is "
            f"{loop.learning_starts}, not {usual.learning_starts}",
            err=True,
        )


class _Outlet:
    """A stream of the program's output; when its reader is gone, training ends with a checkpoint, as by Ctrl-C."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            self._interrupt()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._interrupt()

    def _interrupt(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _interrupted_without_reader() -> Iterator[None]:
    out: Any = _Outlet(sys.stdout)
    errors: Any = _Outlet(sys.stderr)
    with redirect_stdout(out), redirect_stderr(errors):
        yield


def _train_in(run: Run, asked: RecipeRun, *, track: Sequence[str], as_json: bool, **how: Any) -> None:
    watching: list[Callback] = [tracker(name, run, asked) for name in track]
    if as_json:
        watching.append(JsonOutput(sys.stdout))
    ended = asked.train(run, callbacks=watching, progress=not as_json, **how)
    if as_json:
        best = max((one.mean for one in ended.evaluations), default=None)
        click.echo(json.dumps({"event": "run", "path": str(run.path), "step": ended.step, "best": best}))
    else:
        click.echo(str(run.path))


def _train_seeds(
    run: Run, asked: RecipeRun, seeds: Sequence[int], *, track: Sequence[str], cluster: str, as_json: bool, **how: Any
) -> None:
    for name in () if cluster else track:  # what a tracker lacks is told before processes start
        tracker(name, run, asked)
    watcher = JsonOutput(sys.stdout) if as_json else None
    found = train_seeds(asked, run, seeds, track=track, cluster=cluster, watcher=watcher, **how)
    if as_json:
        click.echo(json.dumps({"event": "runs", "path": str(run.path), **summary_of(found)}))
        return
    click.echo(found.table())
    click.echo(str(run.path))


@click.command()
@click.argument("run", type=FILE)
@options(
    click.option(
        "--steps", type=click.IntRange(1), help="Environment steps from the run's beginning, as in `parl train`."
    ),
    click.option("--stop-after", type=click.IntRange(1), help="Stop at this step."),
    click.option("--actors", type=click.IntRange(0), help="Remote actors for the environments; 0: this process."),
    click.option("--cluster", default="", callback=_address, help="host:port of a running cluster for the actors."),
    click.option(
        "--backend", help="torch or paddle, from now on; default: that of the run. Another one draws other numbers."
    ),
    click.option(
        "--device", help="cpu, cuda, cuda:1, …, from now on; default: that of the run. Another one draws other numbers."
    ),
    click.option("--fresh-episodes", is_flag=True, help="Start new episodes if the old ones cannot be continued."),
    click.option("--videos", type=click.IntRange(1), help="Record a video after each N evaluations."),
    click.option(
        "--track", multiple=True, type=click.Choice(TRACKERS), help="Log to this tracker as well. May be repeated."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print only JSON, one object per line."),
)
def resume(
    run: Path, *, steps: int | None, stop_after: int | None, backend: str | None, device: str | None, **how: Any
) -> None:
    """Continue the run in the folder RUN from its last checkpoint, as if it had never stopped."""
    with Run.resume(run) as folder, _interrupted_without_reader():
        asked = RecipeRun.read(folder.path)
        asked = asked if backend is None else replace(asked, backend=backend)
        backends.set_backend(asked.backend)
        seeds = seeds_of(folder.path)
        if device is not None:
            asked = asked.on_device(device)
        elif not (seeds and how["cluster"]):
            asked.require_device(folder.path)
        if seeds:
            asked = asked if steps is None else asked.extended(steps)
            _train_seeds(folder, asked, seeds, max_steps=stop_after, **how)
            return
        _train_in(folder, asked if steps is None else asked.extended(steps), max_steps=stop_after, **how)


@click.command()
@click.argument("algorithm")
@click.argument("env", required=False)
@options(
    click.option("--env-module", "module", default="", help="Import this module first: it registers ENV."),
    ENV_OPTION,
    click.option("--toml", is_flag=True, help="Print a file for --config."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)
def settings(
    algorithm: str, env: str | None, module: str, env_options: dict[str, Any], toml: bool, as_json: bool
) -> None:
    """List the settings that `--set` accepts for ALGORITHM: name, value of the preset for ENV, type, and meaning.

    Settings that the preset leaves out have the algorithm's own value; "-" is no value, or one that follows from other
    settings.
    """
    name = algorithm_named(algorithm, tuple(NETWORKS))
    env = env or _usual_env(name)
    recipe = preset(name, env, module, env_options)
    found = settings_of(name, recipe).values()
    if as_json:
        listed = {one.name: {"value": as_text(one.effective), "type": one.type, "text": one.text} for one in found}
        click.echo(json.dumps({"algorithm": name, "env": env, "steps": recipe.steps, "settings": listed}, indent=2))
    elif toml:
        lines = [f"algorithm = {json.dumps(name)}", f"env = {json.dumps(env)}", f"steps = {recipe.steps}"]
        values = {one.name: one.value for one in found if one.value is not None}
        lines += ["", "[settings]", *toml_lines(values)]
        click.echo("\n".join(lines))
    else:
        click.echo(f"{name} on {env}: {recipe.steps} steps; {recipe.source}")
        rows = []
        for one in found:
            value = "-" if one.effective is None else as_text(one.effective)
            rows.append((one.name, value, one.type, _FIRST_PART.split(one.text, 1)[0]))
        click.echo(columns([("setting", "value", "type", "meaning"), *rows]))


_FIRST_PART = re.compile(r";(?![^(]*\))")  # ends at a semicolon outside of parentheses


def _usual_env(algorithm: str) -> str:
    if contract_of(algorithm).TEAM:
        return "two_step"
    kinds = {kind for name, kind in RECIPES if name == algorithm}
    return "CartPole-v1" if kinds & {"CartPole-v1", "discrete"} else "Pendulum-v1"


@click.command("tune")
@WHAT
@options(
    click.option("--trials", default=20, type=click.IntRange(1), help="Number of additional trials."),
    click.option("--workers", type=click.IntRange(1), help="Number of parallel trials; default: the number of cores."),
    click.option("--cluster", default="", callback=_address, help="host:port of a running cluster for the trials."),
    click.option(
        "--search",
        metavar="NAME=RANGE",
        multiple=True,
        callback=pairs,
        help="lr=1e-5..1e-2, or network.width=64|128; may be repeated. Default: learning rates, discount, batches.",
    ),
    click.option("--no-prune", is_flag=True, help="Run bad trials to their end."),
    click.option("--study", type=FILE, help="Folder of the search; an existing one is continued. Default: in runs/."),
    click.option("--seed", type=SEED, help="Seed of every trial, and of the search; default 0."),
    click.option("--json", "as_json", is_flag=True, help="Print only JSON."),
)
def tune_settings(
    *,
    trials: int,
    workers: int | None,
    cluster: str,
    search: Mapping[str, str],
    no_prune: bool,
    study: Path | None,
    as_json: bool,
    **what: Any,
) -> None:
    """Search for better settings of ALGORITHM on ENV with Optuna, and write the best as a file for --config.

    \b
    parl tune ppo CartPole-v1 --steps 20000 --trials 30 --search lr=1e-4..1e-2 --search "n_steps=32|128|512"
    parl train --config runs/tune-ppo-CartPole-v1/best.toml
    """  # noqa: D301 - click's mark of a paragraph that keeps its lines
    asked = asked_by(**what)
    ranges = {name: read_range(text) for name, text in search.items()} or default_ranges(asked.algorithm, asked)
    folder = study or Path("runs") / f"tune-{asked.algorithm.lower()}-{asked.env.replace('/', '-').replace(':', '-')}"

    def show(line: str) -> None:
        if not as_json:
            click.echo(line)

    found = tune(asked, folder, ranges, trials, workers=workers, cluster=cluster, prune=not no_prune, report=show)
    if as_json:
        counts = {"trials": found.trials, "pruned": found.pruned, "failed": found.failed}
        click.echo(json.dumps({**counts, "best": dict(found.best), "score": found.value, "file": str(found.file)}))
        return
    best = ", ".join(f"{name}={as_text(value)}" for name, value in found.best.items())
    counted = f"{found.trials} trial{'s' * (found.trials != 1)}, {found.pruned} pruned, {found.failed} failed"
    click.echo(f"{counted}; best {found.value:.2f}: {best}")
    click.echo(f"parl train --config {quote(str(found.file))}")
