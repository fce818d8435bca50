"""Names of PARL 1.x and 2.x with their replacements, for messages of the facade and for `parl migrate`.

    programs = [read(path, text) for path, text in ...]
    report(programs)[path]      lines that must change, with replacements
    rewrite(programs)[path]     the source with all mechanical changes

Programs are read, not run, so names that are built at run time (`getattr(parl, name)`) are not found.
"""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from parl_core._deprecation import (
    REMOVED_ATTRIBUTES,
    REMOVED_CLIENT_ATTRIBUTES,
    REMOVED_OPTIMIZER_ATTRIBUTES,
    RENAMED_METHODS,
    STEPS_OF_PARL2,
)

__all__ = [
    "REMOVED_MODULES",
    "REMOVED_NAMES",
    "Edit",
    "Finding",
    "Program",
    "has_removed_names",
    "read",
    "replacement_of",
    "report",
    "rewrite",
]

_CLUSTER = "a part of the cluster's own processes; tests of programs use parl_remote.testing.LoopbackCluster"
_NOW_STATIC = "paddle.fluid was removed; its remaining parts are in paddle and paddle.static"
_FLUID = "write the update eagerly, or see the table for static programs in docs/how-to/migrate.md"

REMOVED_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "parl.core.agent_base": "use parl.Agent",
        "parl.core.algorithm_base": "use parl.Algorithm",
        "parl.core.fluid.layers.attr_holder": "parl.layers needs none: layers keep their parameters themselves",
        "parl.core.fluid.layers.layer_wrappers": "use parl.layers",
        "parl.core.fluid.model_helper": "use model.parameters()",
        "parl.core.fluid.plutils": "write the update eagerly, or build the program with paddle.static",
        "parl.core.model_base": "use parl.Model",
        "parl.env.multiagent_simple_env": "use parl.env.multiagent_env",
        "parl.remote.cluster_monitor": _CLUSTER,
        "parl.remote.communication": "calls pickle their values automatically; for your own data use cloudpickle",
        "parl.remote.compatible_trick": _CLUSTER,
        "parl.remote.cpu_resource": _CLUSTER,
        "parl.remote.future_mode": "use parl.remote_class(wait=False); its methods return parl.RemoteFuture",
        "parl.remote.gpu_resource": _CLUSTER,
        "parl.remote.grpc_heartbeat": _CLUSTER,
        "parl.remote.job": _CLUSTER,
        "parl.remote.log_server": "use `xparl logs ACTOR`",
        "parl.remote.master": f"use `xparl start`; it was {_CLUSTER}",
        "parl.remote.message": _CLUSTER,
        "parl.remote.monitor": "use `xparl start`, which serves the monitor",
        "parl.remote.proxy_wrapper": "use parl.remote_class",
        "parl.remote.remote_class_serialization": _CLUSTER,
        "parl.remote.remote_constants": _CLUSTER,
        "parl.remote.remote_wrapper": "use parl.remote_class",
        "parl.remote.scripts": "use the command `xparl`",
        "parl.remote.start": "use the command `xparl`",
        "parl.remote.status": _CLUSTER,
        "parl.remote.utils": _CLUSTER,
        "parl.remote.worker": f"use `xparl connect`; it was {_CLUSTER}",
        "parl.remote.worker_manager": _CLUSTER,
        "parl.remote.zmq_utils": _CLUSTER,
        "parl.utils.exceptions": "use parl.remote.exceptions",
        "parl.utils.path_utils": "use pathlib",
    }
)
"""Modules of PARL 2.x without a counterpart, with their replacements."""

REMOVED_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "parl.algorithms.impala.impala.VTraceLoss": "use from_importance_weights of vtrace, which it called; the whole "
        "loss is IMPALA.loss(batch)",
        "parl.algorithms.impala.vtrace.recursively_scan": "from_importance_weights does it",
        "parl.algorithms.iql.asymmetric_l2_loss": "use expectile(error, tau) of parl_torch.losses.offline",
        "parl.algorithms.maddpg.SoftPDistribution": "use SoftCategoricalDistribution or "
        "SoftMultiCategoricalDistribution of parl.core.fluid.policy_distribution",
        "parl.algorithms.mappo.PopArt": "MAPPO has it, with use_popart=True, and its statistics are "
        "parl_core.contracts.mappo.PopArt",
        "parl.algorithms.mappo.huber_loss": "use huber(error, delta) of parl_torch.losses.value",
        "parl.core.agent_base.AgentBase": "use parl.Agent",
        "parl.core.algorithm_base.AlgorithmBase": "use parl.Algorithm",
        "parl.core.model_base.ModelBase": "use parl.Model",
        "parl.compile": "use the program itself, which runs without it, on one device; torch's algorithms take "
        "compile=True, and several GPUs learn with torchrun or paddle.distributed.launch",
        "parl.env.multiagent_env.mpe_wrapper_for_pettingzoo": "use parl.env.multiagent_env.MAenv",
        "parl.env.mujoco_wrappers.update_mean_var_count_from_moments": "use parl.env.mujoco_wrappers.RunningMeanStd",
        "parl.logger": "import it from parl.utils",
        "parl.remote.client.Client": "use parl.connect and parl.get_global_client",
        "parl.remote.master.Master": "use `xparl start`",
        "parl.remote.status.WorkerStatus": _CLUSTER,
        "parl.remote.worker.Worker": "use `xparl connect`",
        "parl.utils.deprecation.CustomDeprecationWarning": "use DeprecationWarning",
        "parl.utils.exceptions.DeserializeError": "use parl.remote.exceptions.RemoteDeserializeError",
        "parl.utils.exceptions.SerializeError": "use parl.remote.exceptions.RemoteSerializeError",
        "parl.utils.exceptions.UtilsError": "use parl.remote.exceptions.RemoteError",
        "parl.utils.path_utils.format_uniform_path": "use pathlib",
        "parl.utils.tensorboard.create_file_after_first_call": "summary creates its file at the first call",
        "parl.utils.utils.MAX_INT32": "use 2**31 - 1",
        "parl.utils.utils._HAS_FLUID": "fluid is gone",
        "parl.utils.utils._HAS_PADDLE": "use parl_core.backends.installed()",
        "parl.utils.utils._HAS_TORCH": "use parl_core.backends.installed()",
        "parl.utils.utils._IS_WINDOWS": "use os.name == 'nt'",
        "parl.utils.utils.check_installed_framework": "use parl_core.backends.installed()",
        "parl.utils.utils.check_installed_framework_in_windows": "use parl_core.backends.installed()",
        "parl.utils.utils.check_version_for_fluid": "pip installs compatible versions",
        "parl.utils.utils.check_version_for_xpu": "pip installs compatible versions",
        "parl.utils.utils.has_func": "use callable(getattr(object, name, None))",
        "parl.utils.visualdl.create_file_after_first_call": "summary creates its file at the first call",
        "parl.utils.utils.get_fluid_version": "fluid is gone, see paddle.__version__",
        "parl.utils.utils.isnotebook": "see IPython.get_ipython()",
        "parl.utils.utils.kill_process": "end the processes that you started by their handles",
        "parl.utils.utils.to_byte": "use str.encode()",
        "parl.utils.utils.to_str": "use bytes.decode()",
    }
)
"""Names of modules without a counterpart, with their replacements."""


def replacement_of(path: str) -> str | None:
    """Return the replacement of a removed name; None for any other name.

    Args:
        path: A path such as `parl.utils.utils.isnotebook` or `parl.utils.isnotebook`, because packages of PARL 2.x have
            the names of their modules.
    """
    package, _, name = _without_framework(path).rpartition(".")
    for gone, instead in REMOVED_NAMES.items():
        if gone.startswith(f"{package}.") and gone.endswith(f".{name}"):
            return instead
    return None


def has_removed_names(path: str) -> bool:
    """Return whether a module or package of PARL 2.x had names without a counterpart."""
    below = (f"{path}.", f"{_without_framework(path)}.")
    return any(gone.startswith(below) for gone in (*REMOVED_MODULES, *REMOVED_NAMES))


def _without_framework(path: str) -> str:
    """Return `parl.algorithms.mappo` for `parl.algorithms.torch.mappo`: the frameworks have the same modules."""
    return re.sub(r"^(parl\.(?:algorithms|core))\.(?:fluid|paddle|torch)\b", r"\1", path)


_LEARNERS = re.compile(r"parl\.(.+\.)?(Agent|Algorithm|Model)|parl\.algorithms\..+")
_PARTS = ("alg", "algorithm", "model", "target_model")  # attributes of agents and algorithms that are also such objects
_IDS_OF_MODELS = ("get_model_ids", "model_ids")
_COPIES = ("copy.deepcopy", "deepcopy")

_NOW_GYMNASIUM = "gym is now Gymnasium"
_OLD_STEP, _NEW_STEP = 4, 5
_WRAPPER = "CompatWrapper"
_ORDER = f"wrappers of Gymnasium unpack five values from step(): put {_WRAPPER} around this one, not inside it"
_MAKERS = ("gym.make", "gymnasium.make", "parl.env.MAenv", "parl.env.multiagent_env.MAenv")
_OWN_WRAPPER = re.compile(r"gym(nasium)?\.(core\.)?Wrapper")
_NOT_PASSED_ON = ("_max_episode_steps", "seed")
_INSIDE = re.compile(r"gym(nasium)?\.((Action|Observation|Reward)Wrapper|wrappers\..+)")  # unpack five values
_NEWEST: Mapping[str, int] = MappingProxyType(
    {
        "Acrobot": 1,
        "BipedalWalker": 3,
        "BipedalWalkerHardcore": 3,
        "Blackjack": 1,
        "CarRacing": 3,
        "CliffWalking": 1,
        "CliffWalkingSlippery": 1,
        "FrozenLake": 1,
        "FrozenLake8x8": 1,
        "LunarLander": 3,
        "LunarLanderContinuous": 3,
        "Pendulum": 1,
        "Taxi": 4,
    }
)
"""Environments of gym of which Gymnasium has only one version, by name."""
_IDS = (
    (
        re.compile(r"(\w+(?:NoFrameskip|Deterministic)-v[04])"),
        r"ale_py:\1",
        "Atari environments come from ale_py: use '{new}'",
    ),
    (
        re.compile(
            "(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher"
            "|Swimmer|Walker2d)-v[0-3]"
        ),
        r"\1-v5",
        "Gymnasium has v4 and v5 of MuJoCo's environments: use '{new}', after pip install \"parl-core[mujoco]\"",
    ),
    *(
        (re.compile(rf"({name})-v[0-{newest - 1}]"), rf"\1-v{newest}", "Gymnasium has a newer one: use '{new}'")
        for name, newest in _NEWEST.items()
    ),
)
"""Ids of gym that Gymnasium rejects, with the replacement of each and its message."""

_GONE_IDS = (
    (
        re.compile(r"(Fetch(PickAndPlace|Push|Reach|Slide)|Hand(Manipulate|Reach))\w*-v[01]"),
        "it is in gymnasium-robotics, with another version",
    ),
    (
        re.compile(
            r"(Copy|CubeCrash\w*|DuplicatedInput|GuessingGame|HotterColder|KellyCoinflip\w*|MemorizeDigits|NChain"
            r"|RepeatCopy|Reverse|ReversedAddition3?|Roulette)-v0|(Striker|Thrower)-v[0-2]"
        ),
        "it has no replacement",
    ),
)
"""Ids of gym that Gymnasium does not have in any version, with their messages."""

_LEVEL = "write gymnasium.logger.min_level = gymnasium.logger.ERROR"
_OWN_ENV = "derive the environment from gymnasium.Env"
_REGISTRY = "gymnasium.registry is a dictionary of specs by their ids"
_SEEDS = "use numpy.random.SeedSequence"
_VIDEO = "use gymnasium.wrappers.RecordVideo"
_REMOVED_FROM_GYM: Mapping[str, str] = MappingProxyType(
    {
        "GoalEnv": "it is in gymnasium-robotics",
        "envs.DiscreteEnv": _OWN_ENV,
        "envs.all": _REGISTRY,
        "envs.discrete": _OWN_ENV,
        "envs.env_specs": _REGISTRY,
        "envs.rendering": "draw with pygame in the environment's render()",
        "logger.setLevel": _LEVEL,
        "logger.set_level": _LEVEL,
        "utils.create_seed": _SEEDS,
        "utils.hash_seed": _SEEDS,
        "vector.make": "use gymnasium.make_vec(id, num_envs=...)",
        "wrappers.AutoResetWrapper": "use gymnasium.wrappers.Autoreset",
        "wrappers.FrameStack": "use gymnasium.wrappers.FrameStackObservation(env, stack_size)",
        "wrappers.GrayScaleObservation": "use gymnasium.wrappers.GrayscaleObservation",
        "wrappers.LazyFrames": "use numpy.asarray(obs): observations are arrays",
        "wrappers.Monitor": "use gymnasium.wrappers.RecordVideo for videos, RecordEpisodeStatistics for returns",
        "wrappers.PixelObservationWrapper": "use gymnasium.wrappers.AddRenderObservation",
        "wrappers.VideoRecorder": _VIDEO,
        "wrappers.video_recorder": _VIDEO,
    }
)
_MODULE_OF_A_WRAPPER = re.compile(r"gym\.wrappers\.(?!atari_preprocessing)\w+")
_METHODS_OF_NP_RANDOM: Mapping[str, str] = MappingProxyType(
    {"rand": "random", "randint": "integers", "randn": "standard_normal", "random_sample": "random"}
)
"""Methods of numpy's RandomState, which gym's `np_random` was, and those of the Generator that it is in Gymnasium."""

_STATIC: Mapping[str, str] = MappingProxyType(
    {
        f"paddle.fluid.{name}": f"paddle.{module}{name}"
        for module, names in {
            "": "CPUPlace CUDAPinnedPlace CUDAPlace ParamAttr is_compiled_with_cuda",
            "static.": "Executor Program Scope cpu_places cuda_places data default_main_program "
            "default_startup_program global_scope gradients name_scope program_guard scope_guard",
        }.items()
        for name in names.split()
    }
    | {
        f"paddle.fluid.optimizer.{name}{end}": f"paddle.optimizer.{name}"
        for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "Lamb", "Momentum", "RMSProp", "SGD")
        for end in ("", "Optimizer")
    }
)
"""Names for programs of static graphs that paddle has moved to another module."""

_OF_OPTIMIZERS: Mapping[str, str] = MappingProxyType({"parameter_list": "parameters", "regularization": "weight_decay"})
"""Arguments of the optimizers of `paddle.fluid` and of their `minimize`, with those of `paddle.optimizer`."""

_ONE_DEVICE = (
    "run the program with the agent's executor, on one device; several GPUs learn with paddle.distributed.launch"
)
_GONE_OF_FLUID: Mapping[str, str] = MappingProxyType(
    {
        "BuildStrategy": _ONE_DEVICE,
        "CompiledProgram": _ONE_DEVICE,
        "ExecutionStrategy": "leave it out: the executor has no options of threads",
        "ParallelExecutor": _ONE_DEVICE,
        "initializer": "default_initializer of create_parameter takes the number itself, parl_core.layers.Normal(0.1), "
        "or a function of the shape",
        "io": "use agent.save, agent.restore and agent.save_inference_model",
        "layers": "parl.layers has most layers, under the same names; instead of a reader, feed the program: "
        "run(program, feed={...})",
        "optimizer": "use paddle.optimizer",
    }
)
"""Parts of `paddle.fluid`, with replacements of them or of their contents."""

_NAMED_LAYERS = ("batch_norm", "conv2d", "conv_2d", "create_parameter", "data", "embedding", "fc", "layer_norm")
_WITHOUT_EFFECT = ("in_place", "is_distributed", "is_sparse", "numeric_stable_mode", "use_cudnn")
_GONE_OF_LAYERS: Mapping[str, str] = MappingProxyType(
    {
        "attr": "default_initializer gives the initial values",
        "begin_norm_axis": "the last axis is normalised",
        "data_format": "images are [n, channels, height, width]",
        "data_layout": "images are [n, channels, height, width]",
        "ignore_index": "mask these rows of the result",
        "moving_mean_name": "the statistics are buffers of the layer",
        "moving_variance_name": "the statistics are buffers of the layer",
        "padding_idx": "multiply the result by 0 where the index is this one",
        "param_attr": "initial_weight=parl_core.layers.Normal(0.1) of fc and conv_2d gives initial values",
        "return_softmax": "compute parl.layers.softmax(logits) beside it",
        "scale": "layer_norm always has a scale",
        "shift": "layer_norm always has a shift",
    }
)
"""Arguments of fluid's layers that `parl.layers` does not have, with their replacements."""

_AN_ALGORITHM = re.compile(r"(.*\.)?(alg|algorithm)")
_OF_AN_ALGORITHM = re.compile(rf"{_AN_ALGORITHM.pattern}\.(learn|sample)")
# Names that are right in agents and models, or that another rule reports.
_OF_AGENTS = ("build_program", "fluid_executor", *RENAMED_METHODS, *_IDS_OF_MODELS)
_SCHEDULER = re.compile(r"\blr_scheduler\.|LR$")
_RATE = (
    "PyTorch's schedulers take no optimizer of parl.algorithms: pass a schedule as the algorithm's lr, or call set_lr"
)
_A2C_RATE = "A2C.learn takes its learning rate as learning_rate: learn(..., learning_rate=...)"
_ONE_MODEL = (
    "takes one model with policy, value, get_actor_params and get_critic_params, and gives actions in [-1, 1]: no "
    "critic, no max_action"
)
_NO_NAME = "results of paddle's programs have no name: fetch the tensor itself"
_PORT = "get_free_tcp_port returns a number"
_AXIS_OF_PPO = (
    "PPO.sample returns actions and their log-probabilities without the leading axis that they had on paddle: remove "
    "this [0] if it takes that axis"
)
_OF_TEAMS: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "COMA": (
            re.compile(r"\binit_hidden\b"),
            "COMA learns from joint observations, with a model of parl.networks.for_team, and has no init_hidden",
        ),
        "DecisionTransformer": (
            re.compile(r"\bget_action\b"),
            "DecisionTransformer takes models whose forward returns the predicted actions alone, without get_action",
        ),
        "MAPPO": (
            re.compile(r"\b(cent_obs|share_obs|multi_discrete)\b"),
            "MAPPO learns from joint observations, with a model of parl.networks.for_team: sample(joint_obs)",
        ),
    }
)
"""Algorithms whose models differ, with patterns in programs of PARL 2.x and their replacements."""

_LEARNED = re.compile(r"loss|cost|^kl$|^entropy$")  # names of scalars that `learn` returns


@dataclass(frozen=True, order=True)
class Edit:
    """Text that replaces a part of a line.

    Attributes:
        line: Its number, from 1.
        start, end: Columns of the line in UTF-8; `end` is exclusive.
        text: The replacement.
    """

    line: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, order=True)
class Finding:
    """A line that must change.

    Attributes:
        line: Its number, from 1.
        message: Description of the replacement.
        mechanical: True if `rewrite` makes the change.
    """

    line: int
    message: str
    mechanical: bool = False


@dataclass(frozen=True)
class Program:
    """The findings of `read` in one file.

    Attributes:
        source: Its text.
        findings: Changes that do not depend on other programs.
        edits: The mechanical ones among them.
        makes: Edits that put `CompatWrapper` around calls of `gym.make` and `MAenv` without one, outside of Gymnasium's
            own wrappers.
        inside: Lines that put one of these wrappers around an environment of unknown origin.
        imports_at: Line and column at which an import may be inserted; a column above 0 is that of a statement which
            shares its line with the docstring or an import from `__future__`.
        old_steps: Lines that unpack four values from `step`, as in gym's API; where none unpacks its values, those that
            use the result of `reset` of an environment of gym as the observation.
        has_new_steps: True if it unpacks five values from a `step`.
        has_wrapper: True if it imports or calls `CompatWrapper`.
        imports_wrapper: True if it imports it under the name `CompatWrapper`.
        has_old_env: True if it defines an environment with gym's API.
        seeds: Lines that call `seed` of an environment that `gym.make` made, each with a flag for one that `makes`
            wraps.
        built: Lines that make an algorithm of `_OF_TEAMS`, with its name.
    """

    path: str
    source: str
    findings: Sequence[Finding]
    edits: Sequence[Edit]
    makes: Sequence[Edit]
    inside: Sequence[int]
    imports_at: tuple[int, int]
    old_steps: Sequence[int]
    has_new_steps: bool
    has_wrapper: bool
    imports_wrapper: bool
    has_old_env: bool
    seeds: Sequence[tuple[int, bool]]
    built: Sequence[tuple[int, str]]


def read(path: str, source: str) -> Program:
    """Find the necessary changes in a program.

    Args:
        path: Its path, for messages.
        source: Its text.

    Raises:
        SyntaxError: It is not Python 3.
    """
    with warnings.catch_warnings(action="ignore"):  # those of Python, such as for an invalid escape sequence
        tree = ast.parse(source, path)
    reader = _Reader(source)
    reader.visit(tree)
    return Program(
        path,
        source,
        reader.findings,
        reader.edits,
        [edit for edits in reader.makes.values() for edit in edits],
        reader.inside,
        _imports_at(tree),
        reader.old_steps or ([] if reader.has_new_steps else reader.old_resets),
        reader.has_new_steps,
        reader.has_wrapper,
        any(_imports_wrapper(statement) for statement in tree.body),
        bool(reader.old_envs),
        [(line, made in reader.makes) for line, made in reader.seeds],
        reader.built,
    )


def report(programs: Sequence[Program], *, written: bool = False) -> dict[str, list[Finding]]:
    """Return the necessary changes in each program, by path and line.

    Args:
        programs: The programs of one project: whether a program that makes environments needs a `CompatWrapper` depends
            on the program that steps them.
        written: True to number the lines as after `rewrite`.
    """
    found = {program.path: list(program.findings) for program in programs}
    wrapping = _to_wrap(programs)
    is_done = not wrapping and any(program.has_wrapper or program.has_old_env for program in programs)
    step = "step() of Gymnasium returns obs, reward, terminated, truncated, info, and reset() returns obs, info"
    for program in _with_gyms_api(programs):
        of_others = not program.makes
        if of_others and is_done:
            continue  # another program makes and wraps its environments, or they have gym's API
        wraps = program in wrapping or (of_others and bool(wrapping) and not _is_mixed(programs))
        hint = (
            f"{_WRAPPER} around gym.make(...) or MAenv(...) keeps gym's old API"
            if wraps
            else f"put {_WRAPPER} around environments"
        )
        found[program.path] += [Finding(line, f"{step}: {hint}", mechanical=wraps) for line in program.old_steps]
    if _with_gyms_api(programs) and not is_done:
        for program in programs:
            if not (program.has_wrapper or program.has_new_steps):
                found[program.path] += [Finding(line, _ORDER) for line in program.inside]
    for program in programs:
        wraps = program in wrapping
        if wraps and program.has_wrapper:
            message = f"{_WRAPPER} around this environment, too, keeps gym's old API"
            found[program.path] += [
                Finding(edit.line, message, mechanical=True) for edit in program.makes if edit.text != ")"
            ]
        for line, is_wrapped in program.seeds:
            hint = (
                f"{_WRAPPER} around gym.make(...) has it"
                if wraps and is_wrapped
                else f"use reset(seed=...), or call it after {_WRAPPER}"
            )
            message = f"environments of Gymnasium have no seed(): {hint}"
            found[program.path].append(Finding(line, message, mechanical=wraps and is_wrapped))
        for line, algorithm in program.built:
            mark, message = _OF_TEAMS[algorithm]
            if any(mark.search(each.source) for each in programs):
                found[program.path].append(Finding(line, message))
    if written:
        for path, edits in _edits(programs).items():
            found[path] = [replace(one, line=_line_after(edits, one.line)) for one in found[path]]
    return {path: sorted(findings) for path, findings in found.items()}


def rewrite(programs: Sequence[Program]) -> dict[str, str]:
    """Return the new text of each program that changes, by path, with all mechanical findings of `report` applied."""
    sources = {program.path: program.source for program in programs}
    return {path: _applied(sources[path], edits) for path, edits in _edits(programs).items() if edits}


def _edits(programs: Sequence[Program]) -> dict[str, list[Edit]]:
    edits = {program.path: list(program.edits) for program in programs}
    for program in _to_wrap(programs):
        line, column = program.imports_at
        first = _lines(program.source)[0]
        end = "; " if column else first[len(first.rstrip("\r\n")) :] or "\n"
        statement = Edit(line, column, column, f"from parl.env import {_WRAPPER}{end}")
        edits[program.path] += [*program.makes, *(() if program.imports_wrapper else (statement,))]
    return edits


def _with_gyms_api(programs: Sequence[Program]) -> list[Program]:
    """Return the programs that step environments with gym's API, but have no wrapper for this API."""
    return [program for program in programs if program.old_steps and not program.has_wrapper]


def _is_mixed(programs: Sequence[Program]) -> bool:
    return any(program.has_new_steps for program in programs)


def _to_wrap(programs: Sequence[Program]) -> list[Program]:
    """Return the programs in which environments get a `CompatWrapper`.

    The steps and seeds from a program decide for the environments that it makes. For a program that only makes
    environments, the other programs decide, if all of them use gym's API.
    """
    others_tell = bool(_with_gyms_api(programs)) and not _is_mixed(programs)
    return [
        program
        for program in programs
        if program.makes
        and not program.has_new_steps
        and (program.old_steps or any(is_wrapped for _, is_wrapped in program.seeds) or others_tell)
    ]


def _line_after(edits: Iterable[Edit], line: int) -> int:
    """Return the number of a line after edits; an edit that adds a line inserts it before its own."""
    return line + sum(edit.text.endswith(("\n", "\r")) for edit in edits if edit.line <= line)


class _Reader(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.lines = _lines(source)
        self.findings: list[Finding] = []
        self.edits: list[Edit] = []
        self.makes: dict[ast.expr, list[Edit]] = {}
        self.inside: list[int] = []
        self.old_steps: list[int] = []
        self.old_resets: list[int] = []
        self.has_new_steps = False
        self._is_of_parl = False
        self._has_fluid = False
        self.has_wrapper = False
        self._modules: dict[str, str] = {}  # the paths of imported names: "gym", "parl", "parl.utils.utils.to_str"
        self._wrapped: set[ast.AST] = set()
        self.old_envs: set[str] = set()  # the program's own classes with gym's API
        self.seeds: list[tuple[int, ast.expr]] = []
        self.built: list[tuple[int, str]] = []
        self._made: dict[str, ast.expr] = {}  # the keys in `makes` of the objects of names in this function
        self._raw: set[str] = set()  # names of environments that have Gymnasium's API unless they get a `CompatWrapper`
        self._compat: set[str] = set()  # names of environments in a `CompatWrapper`
        # keys in `makes` of environments whose methods are called before they are wrapped
        self._plain: set[ast.expr] = set()
        self._of_gym: set[ast.expr] = set()  # keys in `makes` that have gym's API in PARL 2.x
        self._tree = self._scope = ast.AST()  # the program; the function around this statement, or the program
        self._place: tuple[object, ...] = ()  # the branches around this statement
        self._places: dict[ast.expr, tuple[object, ...]] = {}  # the branches of each entry of `makes`
        self._has_axis: set[str] = set()  # names of actions and log-probabilities of PPO on paddle
        self._own_generators: set[str] = set()  # what stands for a generator of the program's own: {"self.np_random"}
        self._in_fstring = False
        self._in_program = False  # True within a `build_program`
        self._own_wrappers: dict[str, set[str]] = {}  # the program's own gym.Wrapper classes, and their methods
        self._losses: set[str] = set()  # names of results of `learn`
        self._steps: set[str] = set()  # names of whole results of `step`
        self._wrappers: set[str] = set()  # the program's own classes that unpack five values of `step`
        self._origins: dict[str, str | None] = {}  # origins of objects: {"self.alg": "parl.algorithms.A2C"}
        # the program's own classes: True if they derive from PARL's; None if unknown
        self._classes: dict[str, bool | None] = {}
        # the names that the program's own subclasses of parl.algorithms define, by class
        self._algorithms: dict[str, frozenset[str]] = {}
        self._defined: frozenset[str] | None = None  # those of the class of `self`; None if it is no such subclass
        self._methods: dict[ast.stmt, bool | None] = {}  # the class of each method
        self._self: bool | None = None  # the class of `self`

    def visit_Module(self, node: ast.Module) -> None:
        self._tree = self._scope = node
        self._own_generators = set(_own_generators(node))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name != "paddle.fluid":
                self._module(alias, alias.name)
            top = alias.name.partition(".")[0]
            self._modules[alias.asname or top] = alias.name if alias.asname else top
            if top == "gym":
                name = "gymnasium" + alias.name.removeprefix("gym")
                new = f"{name} as {alias.asname}" if alias.asname else "gymnasium as gym"
                self._change(alias, _NOW_GYMNASIUM, new)
            if alias.name == "paddle.fluid":
                self._has_fluid = True
                self._change(alias, _NOW_STATIC, "paddle")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        self.has_wrapper |= any(alias.name == _WRAPPER for alias in node.names)
        if node.level or not module:
            return
        if [f"{module}.{alias.name}" for alias in node.names] == ["paddle.fluid"] and node.end_lineno == node.lineno:
            self._modules[node.names[0].asname or "fluid"] = "paddle.fluid"
            self._has_fluid = True
            self._change(node, _NOW_STATIC, "import paddle")
            return
        gone = self._module(node, module)
        if module.partition(".")[0] == "gym" and not any(
            _removed_from_gym(f"{module}.{name.name}") for name in node.names
        ):
            start = self._bytes(node.lineno).find(b"gym", node.col_offset)
            old = module if _MODULE_OF_A_WRAPPER.fullmatch(module) else "gym"
            new = "gymnasium" if old == "gym" else "gymnasium.wrappers"
            if start < 0:  # the module's name is on the next line
                self.findings.append(Finding(node.lineno, f"{_NOW_GYMNASIUM}: {new} instead of {old}"))
            else:
                self._change_part(node.lineno, start, start + len(old), _NOW_GYMNASIUM, new)
        for alias in node.names:
            full = f"{module}.{alias.name}"
            if not gone and not self._module(alias, full):
                self._name(alias, full)
            if full == "paddle.fluid" or module.partition(".")[0] in ("gym", "gymnasium", "parl"):
                self._modules[alias.asname or alias.name] = full

    def visit_Try(self, node: ast.Try) -> None:
        imports = [part for part in node.body if isinstance(part, ast.Import)]
        has_gymnasium = any(alias.name == "gymnasium" for part in imports for alias in part.names)
        for part in (*node.body, *(() if has_gymnasium else node.handlers), *node.orelse, *node.finalbody):
            self.visit(part)  # without the branch for a missing Gymnasium

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is not None and path.startswith("paddle.fluid."):
            self._of_fluid(node, path)
            return  # the expression before the dot is a part of this name
        if path is not None:
            self._name(node, path)
        elif node.attr in RENAMED_METHODS and self._is_of_parl:
            self._renamed(node.attr, node.end_lineno or node.lineno, node.end_col_offset, self._is_learner(node.value))
        if node.attr in _IDS_OF_MODELS and self._is_learner(node.value):
            self.findings.append(Finding(node.lineno, f"{node.attr} is gone: {REMOVED_ATTRIBUTES[node.attr]}"))
        if node.attr in REMOVED_CLIENT_ATTRIBUTES and _last(self._origin_of(node.value)) == "get_global_client":
            message = f"get_global_client().{node.attr} is gone: {REMOVED_CLIENT_ATTRIBUTES[node.attr]}"
            self.findings.append(Finding(node.lineno, message))
        self._of_an_algorithm(node)
        made = self._made.get(ast.unparse(node.value))
        if made is not None and node.attr in ("reset", "seed", "step"):
            self._plain.add(made)
            if node.attr == "seed" and ast.unparse(node.value) in self._raw and self._origin_of(node.value) is None:
                self.seeds.append((node.lineno, made))
        methods = self._own_wrappers.get(self._origin_of(node.value) or "", {node.attr})
        if node.attr in _NOT_PASSED_ON and node.attr not in methods:
            self._not_passed_on(node)
        self._wrap(node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._branches(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._branches(node.test, [node.body], [node.orelse])

    def visit_BinOp(self, node: ast.BinOp) -> None:
        for port, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(node.op, ast.Add) and self._is_port(port) and _has_text(other):
                line, start, end = port.lineno, port.col_offset, port.end_col_offset or 0
                message = f"{_PORT}: str(...) makes text of it"
                if port.end_lineno == line:
                    old = self._bytes(line)[start:end].decode()
                    self._change_part(line, start, end, message, f"str({old})")
                else:
                    self.findings.append(Finding(line, message))
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        outer, self._in_fstring = self._in_fstring, True
        self.generic_visit(node)
        self._in_fstring = outer

    def visit_List(self, node: ast.List) -> None:
        if self._in_program and self._is_of_parl:
            self._fetched(node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in RENAMED_METHODS and node in self._methods and self._is_of_parl:
            start = self._bytes(node.lineno).index(node.name.encode(), node.col_offset)
            self._renamed(node.name, node.lineno, start + len(node.name), self._methods[node])
        outer = (self._losses, self._has_axis, self._in_program, self._raw, self._scope)
        made, compat, origins = self._made, self._compat, self._origins
        parameters = {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        self._made = {name: expression for name, expression in made.items() if "." in name}
        self._compat = {name for name in compat if "." in name}
        self._losses, self._has_axis, self._in_program = set(), set(), node.name == "build_program"
        self._raw, self._scope = {name for name in self._raw if "." in name}, node
        self._origins = {name: origin for name, origin in origins.items() if name not in parameters}
        self.generic_visit(node)
        attributes = {name: origin for name, origin in self._origins.items() if "." in name}  # visible in other methods
        self._made = made | {name: expression for name, expression in self._made.items() if "." in name}
        self._compat = compat | {name for name in self._compat if "." in name}
        in_attributes = {name for name in self._raw if "." in name}
        self._losses, self._has_axis, self._in_program, self._raw, self._scope = outer
        self._raw |= in_attributes
        self._origins = origins | attributes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(self._unpacks_five(base) for base in node.bases):
            self._wrappers.add(node.name)
        methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        if any(self._names_of_algorithm(base) is not None for base in node.bases) and "learn" not in methods:
            for name in methods.keys() & STEPS_OF_PARL2.keys():
                message = f"learn does not call {name}: {STEPS_OF_PARL2[name]}"
                self.findings.append(Finding(methods[name].lineno, message))
        if any(self._is_own_wrapper(base) for base in node.bases) and "__getattr__" not in methods:
            self._own_wrappers[node.name] = set(methods)
        elif _has_gyms_api(methods) and node.name not in self._wrappers:
            self.old_envs.add(node.name)
        kinds = [self._is_learner_class(base) for base in node.bases]
        kind = True if True in kinds else None if None in kinds else False
        self._classes[node.name] = kind
        self._methods |= dict.fromkeys(node.body, kind)
        of_bases = [names for base in node.bases if (names := self._names_of_algorithm(base)) is not None]
        defined = frozenset(methods.keys() | _attributes_of_self(node)).union(*of_bases) if of_bases else None
        if defined is not None:
            self._algorithms[node.name] = defined
        outer = (self._self, self._defined, self._origins, self._made, self._raw, self._compat)
        self._self, self._defined, self._origins = kind, defined, dict(self._origins)
        self._made, self._raw, self._compat = {}, set(), set()
        self.generic_visit(node)
        self._self, self._defined, self._origins, self._made, self._raw, self._compat = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        parts = target.elts if isinstance(target, ast.List | ast.Tuple) else [target]
        if any(isinstance(part, ast.Starred) for part in parts):
            parts = []  # any number of values
        names = [getattr(part, "id", "") for part in parts]
        is_step = _is_call_of(node.value, "step") or ast.unparse(node.value) in self._steps
        if is_step and len(names) == _OLD_STEP:
            self.old_steps.append(node.lineno)
        if self._is_old_reset(node.value) and not isinstance(target, ast.List | ast.Tuple):
            name = ast.unparse(target)
            is_pair = _takes_apart(self._tree if "." in name else self._scope, name)
            self.old_resets += [] if is_pair else [node.lineno]
        self.has_new_steps |= is_step and len(names) == _NEW_STEP
        if (self._is_of_parl or "paddle" in self._modules) and "torch" not in self._modules:
            origin = self._origin_of_owner(node.value)
            if len(names) == len(("value", "action", "logp", "entropy")) and _samples(node.value, origin, "PPO"):
                self._has_axis |= set(names[1:3])
        self.generic_visit(node)
        whole = set() if isinstance(target, ast.List | ast.Tuple) else {ast.unparse(target)}
        self._steps = self._steps | whole if _is_call_of(node.value, "step") else self._steps - whole
        if _is_call_of(node.value, "learn") or self._is_loss(node.value):
            self._losses |= {name for name in _names_in(target) if _LEARNED.search(name)}
        self._note_origin(ast.unparse(target), node.value)
        self._note_environment(ast.unparse(target), node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._note_origin(ast.unparse(node.target), node.value)
            self._note_environment(ast.unparse(node.target), node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if self._path(node.func) == "parl.compile" and node.args and node.end_lineno == node.lineno:
            program = node.args[0]
            if isinstance(program, ast.Attribute | ast.Call | ast.Name):  # others bind looser than a call, or are none
                self._of_compile(node, program)
                return
        if (self._path(node.func) or ast.unparse(node.func)).rpartition(".")[2] == _WRAPPER:
            self.has_wrapper = True
            for inside in node.args[:1]:
                self._leave(inside)
        self._wrap(node)
        has_gym = any(module.startswith("gym") for module in self._modules.values())
        if has_gym and _is_call_of(node, "render") and any(word.arg == "mode" for word in node.keywords):
            self.findings.append(Finding(node.lineno, "render() takes no mode: pass render_mode to gym.make(...)"))
        self._wrapper_of_gym(node)
        if _is_call_of(node, "learn"):
            self._rate_of_a2c(node)
        self._layer(node)
        name = _last(path) if (path := self._path(node.func)) and path.startswith("parl.") else None
        if name is not None and name in _OF_TEAMS:
            self.built.append((node.lineno, name))
        words = {word.arg: word.value for word in node.keywords}
        if name in ("SAC", "TD3") and ("max_action" in words or ("gamma" in words and len(node.args) > 1)):
            self.findings.append(Finding(node.lineno, f"{name} {_ONE_MODEL}"))
        if "fetch_list" in words and self._is_of_parl and not self._in_program:
            self._fetched(words["fetch_list"])
        if _SCHEDULER.search(ast.unparse(node.func)):
            for argument in (*node.args[:1], *(word.value for word in node.keywords if word.arg == "optimizer")):
                if (condition := self._as_optimizer(argument)) is not None:
                    self.findings.append(Finding(argument.lineno, f"{_RATE}{condition}"))
        method = node.func if isinstance(node.func, ast.Attribute) else None
        makes_optimizer = (self._path(node.func) or "").startswith("paddle.fluid.optimizer.")
        if makes_optimizer or (method and method.attr == "minimize" and self._has_fluid):
            for word in node.keywords:
                old, instead = word.arg or "", _OF_OPTIMIZERS.get(word.arg or "")
                if instead is not None:
                    message = f"paddle.optimizer calls {old} {instead}"
                    self._change_part(word.lineno, word.col_offset, word.col_offset + len(old), message, instead)
        if method and method.attr == "sync_params_to" and self._is_learner(method.value):
            self._without_gpu(node)
        if method and has_gym and method.attr in _METHODS_OF_NP_RANDOM:
            self._of_np_random(node, method)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._is_number_of_paddle(node) and node.value.end_lineno == node.end_lineno:
            start, end = node.value.end_col_offset or 0, node.end_col_offset or 0
            message = "paddle's scalars have had no axis since 2.5: write .numpy().item() instead of .numpy()[0]"
            self._change_part(node.end_lineno or node.lineno, start, end, message, ".item()")
        if self._has_axis and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            tensor: ast.expr = node.value
            while isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute):
                tensor = tensor.func.value
            if isinstance(tensor, ast.Name) and tensor.id in self._has_axis:
                self.findings.append(Finding(node.lineno, _AXIS_OF_PPO))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        for pattern, new_id, message in _IDS:
            if not isinstance(node.value, str) or not pattern.fullmatch(node.value):
                continue
            start = self._bytes(node.lineno).find(node.value.encode(), node.col_offset)
            new, end = pattern.sub(new_id, node.value), start + len(node.value.encode())
            if start >= 0:
                self._change_part(node.lineno, start, end, message.format(new=new), new)
            else:  # written in parts, or with escapes
                self.findings.append(Finding(node.lineno, message.format(new=new)))
        for pattern, message in _GONE_IDS:
            if isinstance(node.value, str) and pattern.fullmatch(node.value):
                self.findings.append(Finding(node.lineno, f"Gymnasium does not have '{node.value}': {message}"))

    def _module(self, node: ast.stmt | ast.alias, name: str) -> bool:
        """Record whether this is a program of PARL; record and return whether the module was removed."""
        self._is_of_parl |= name.partition(".")[0] == "parl"
        for gone, instead in {**REMOVED_MODULES, "paddle.fluid": _FLUID}.items():
            if name == gone or name.startswith(f"{gone}."):
                self.findings.append(Finding(node.lineno, f"{gone} is gone: {instead}"))
                return True
        return False

    def _name(self, node: ast.expr | ast.alias, path: str) -> None:
        """Record the use of a removed name."""
        instead = replacement_of(path) if path.startswith("parl.") else _removed_from_gym(path)
        if instead is not None:
            self.findings.append(Finding(node.lineno, f"{path} is gone: {instead}"))

    def _of_fluid(self, node: ast.Attribute, path: str) -> None:
        """Replace a name of `paddle.fluid` by that of `paddle.static`, or report it."""
        new = _STATIC.get(path)
        if new is not None and node.end_lineno == node.lineno:
            self._change(node, f"{path} is now {new}", new)
        else:
            instead = _GONE_OF_FLUID.get(path.split(".")[2], _FLUID)
            self.findings.append(Finding(node.lineno, f"{path} is gone: {instead}"))

    def _of_compile(self, call: ast.Call, program: ast.expr) -> None:
        """Replace a call of `parl.compile` by the program of static graphs itself."""
        line, start, end = call.lineno, program.col_offset, program.end_col_offset or 0
        message = f"parl.compile is gone: {REMOVED_NAMES['parl.compile']}"
        self._change_part(line, call.col_offset, start, message, "")
        self.edits.append(Edit(line, end, call.end_col_offset or 0, ""))
        self.visit(program)

    def _of_an_algorithm(self, node: ast.Attribute) -> None:
        """Report an attribute that PARL's algorithms or their optimizers had in PARL 2.x."""
        defined = self._names_defined_by(node.value)
        instead = None if node.attr in _OF_AGENTS else REMOVED_ATTRIBUTES.get(node.attr)
        if defined is not None and instead is not None and node.attr not in defined:
            self.findings.append(Finding(node.lineno, f"{node.attr} is gone: {instead}"))
        instead, condition = REMOVED_OPTIMIZER_ATTRIBUTES.get(node.attr), self._as_optimizer(node.value)
        if instead is not None and condition is not None:
            message = f"optimizers of parl.algorithms have no {node.attr}: {instead}{condition}"
            self.findings.append(Finding(node.end_lineno or node.lineno, message))

    def _as_optimizer(self, node: ast.expr) -> str | None:
        """Return on what it depends whether an object is the optimizer of one of PARL's algorithms.

        Returns:
            The condition for messages, empty if there is none; None if it is no such optimizer.
        """
        if not isinstance(node, ast.Attribute) or not node.attr.endswith("optimizer"):
            return None
        defined, owner = self._names_defined_by(node.value), ast.unparse(node.value)
        if defined is not None:
            return None if node.attr in defined else ""
        may_be = self._is_of_parl and _AN_ALGORITHM.fullmatch(owner) is not None and self._origin_of(node.value) is None
        return f", if {owner} is one of them and {node.attr} is its own" if may_be else None

    def _of_np_random(self, call: ast.Call, method: ast.Attribute) -> None:
        """Replace a method of numpy's RandomState, where the generator of an environment calls it."""
        owner = method.value
        named = "np_random" in (getattr(owner, "attr", None), getattr(owner, "id", None))
        if not named or ast.unparse(owner) in self._own_generators:
            return
        new = _METHODS_OF_NP_RANDOM[method.attr]
        line, end = method.end_lineno or method.lineno, method.end_col_offset or 0
        message = f"np_random is a numpy.random.Generator in Gymnasium: {new} instead of {method.attr}"
        several = len(call.args) > 1 or any(isinstance(one, ast.Starred) for one in call.args)
        if self._own_generators:  # this may be one of them under another name
            self.findings.append(Finding(line, f"{message}, unless it is a RandomState of the program's own"))
        elif several and method.attr in ("rand", "randn"):
            self.findings.append(Finding(line, f"{message}, with the shape as one tuple"))
        else:
            self._change_part(line, end - len(method.attr), end, message, new)

    def _wrapper_of_gym(self, call: ast.Call) -> None:
        """Report a wrapper of Gymnasium that takes other arguments than that of gym."""
        path, second = self._path(call.func) or "", call.args[1:2]
        if not path.startswith("gym"):
            return
        words = {word.arg for word in call.keywords}
        if path.endswith(".TransformObservation") and len(call.args) < 3 and "observation_space" not in words:
            message = "TransformObservation of Gymnasium takes the space of the new observations as its third argument"
            self.findings.append(Finding(call.lineno, message))
        if path.endswith(".ResizeObservation") and any(isinstance(one, ast.Constant) for one in second):
            message = "ResizeObservation of Gymnasium takes height and width: (84, 84)"
            self.findings.append(Finding(call.lineno, message))

    def _rate_of_a2c(self, call: ast.Call) -> None:
        """Rename the learning rate of `A2C.learn`; only report it if another file makes the algorithm."""
        words = {word.arg: word for word in call.keywords}
        if "lr" not in words:
            return
        origin, rate = self._origin_of_owner(call), words["lr"]
        if _last(origin) == "A2C":
            self._change_part(rate.lineno, rate.col_offset, rate.col_offset + len("lr"), _A2C_RATE, "learning_rate")
        elif origin is None and "entropy_coeff" in words and _OF_AN_ALGORITHM.fullmatch(ast.unparse(call.func)):
            self.findings.append(Finding(rate.lineno, _A2C_RATE))

    def _layer(self, call: ast.Call) -> None:
        """Drop arguments of a call of `parl.layers` that have no effect, and report removed ones."""
        package, _, function = (self._path(call.func) or "").rpartition(".")
        if package in ("parl.layers", "parl.core.fluid.layers"):
            dropped: ast.keyword | None = None
            for word in call.keywords:
                message = f"{function} of parl.layers has no {word.arg}"
                if word.arg in _WITHOUT_EFFECT or (word.arg == "name" and function not in _NAMED_LAYERS):
                    self._drop(word, f"{message}: drop the argument", behind=dropped)
                    dropped = word
                elif word.arg == "act" and function.startswith("elementwise_"):
                    self.findings.append(Finding(word.lineno, f"{message}: pass the result to the activation"))
                elif (instead := _GONE_OF_LAYERS.get(word.arg or "")) and not _is_none(word.value):
                    self.findings.append(Finding(word.lineno, f"{message}: {instead}"))
        of_a_parameter = _last(self._origins.get(ast.unparse(call.func))) == "create_parameter"
        if of_a_parameter and not call.args and call.func.end_lineno == call.end_lineno:
            start, end = call.func.end_col_offset or 0, call.end_col_offset or 0
            message = "create_parameter returns the parameter itself: use it without calling it"
            self._change_part(call.end_lineno or call.lineno, start, end, message, "")

    def _renamed(self, old: str, line: int, end: int | None, is_learner: bool | None) -> None:
        """Rename a method of a model, algorithm or agent; only report it if the object's class is unknown."""
        new = RENAMED_METHODS[old]
        if is_learner:
            self._change_part(line, (end or 0) - len(old), end or 0, f"{old} is now {new}", new)
        elif is_learner is None:
            message = f"{old} is now {new}, if this object is a model, algorithm or agent of PARL"
            self.findings.append(Finding(line, message))

    def _without_gpu(self, call: ast.Call) -> None:
        """Drop the argument of `sync_params_to` that `sync_weights_to` lacks, and rename the first one."""
        for word in call.keywords:
            if word.arg == "target_net":
                end, message = word.col_offset + len(word.arg), "sync_weights_to calls its argument target_model"
                self._change_part(word.lineno, word.col_offset, end, message, "target_model")
        second = () if any(isinstance(one, ast.Starred) for one in call.args[:2]) else call.args[1:2]
        for argument in (*second, *(word for word in call.keywords if word.arg == "gpu_id")):
            self._drop(argument, "sync_weights_to has no gpu_id: drop the argument")

    def _drop(self, argument: ast.expr | ast.keyword, message: str, behind: ast.keyword | None = None) -> None:
        """Drop an argument of a call, with an adjacent comma that no other dropped argument has removed."""
        line = self._bytes(argument.lineno)
        start, end = argument.col_offset, argument.end_col_offset or 0
        if argument.end_lineno != argument.lineno:
            self.findings.append(Finding(argument.lineno, message))
            return
        if comma := re.match(rb"\s*,[ \t]*", line[end:]):
            end += comma.end()
        elif line[:start].strip() and not (behind and behind.end_lineno == argument.lineno):
            start = len(line[:start].rstrip().removesuffix(b","))
        self._change_part(argument.lineno, start, end, message, "")

    def _change(self, node: ast.alias | ast.stmt | ast.expr, message: str, text: str) -> None:
        self._change_part(node.lineno, node.col_offset, node.end_col_offset or 0, message, text)

    def _change_part(self, line: int, start: int, end: int, message: str, text: str) -> None:
        self.findings.append(Finding(line, message, mechanical=True))
        self.edits.append(Edit(line, start, end, text))

    def _not_passed_on(self, node: ast.Attribute) -> None:
        line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        message = "Gymnasium's wrappers forward no attributes"
        if isinstance(node.ctx, ast.Load):
            new = f'get_wrapper_attr("{node.attr}")'
            message = f"{message}: {new} reads the wrapped environment's"
            if self._in_fstring:  # before Python 3.12, its quotes would end the f-string
                self.findings.append(Finding(line, message))
            else:
                self._change_part(line, end - len(node.attr), end, message, new)
        else:
            new = f'{ast.unparse(node.value)}.set_wrapper_attr("{node.attr}", ...)'
            self.findings.append(Finding(line, f"{message}: {new} sets the wrapped environment's"))

    def _wrap(self, node: ast.Call | ast.Attribute) -> None:
        """Put `CompatWrapper` around an environment that an expression makes, outside of Gymnasium's own wrappers."""
        inner: ast.expr = node
        while (deeper := self._inside_of(inner)) is not None:
            inner = deeper
            self._wrapped.add(inner)
        if node in self._wrapped:
            return
        if self._makes(node):
            if isinstance(inner, ast.Name):
                self.makes.pop(self._made[inner.id], None)
            self._make(node)
        elif inner is not node and isinstance(node, ast.Call):
            made_by = inner.func.id if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) else None
            if self._is_compat(inner):
                self.findings.append(Finding(node.lineno, _ORDER))
            elif {made_by, self._origin_of(inner)} & self.old_envs:
                name, inside = ast.unparse(node.func), ast.unparse(inner)
                message = f"{_WRAPPER}({name}(as_gymnasium({inside}))), with parl.env.as_gymnasium"
                self.findings.append(Finding(node.lineno, f"{name} unpacks five values from step(): write {message}"))
            else:
                self.inside.append(node.lineno)

    def _make(self, node: ast.expr) -> None:
        """Record an environment that gets a `CompatWrapper`."""
        self._places[node] = self._place
        if self._is_of_gym(node):
            self._of_gym.add(node)
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        self.makes[node] = [
            Edit(node.lineno, node.col_offset, node.col_offset, f"{_WRAPPER}("),
            Edit(end_line, end, end, ")"),
        ]

    def _is_of_gym(self, node: ast.expr) -> bool:
        """Return whether an expression makes an environment of gym or of PARL, not of Gymnasium, or has one inside."""
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and (path := self._path(part.func)) in _MAKERS:
                return not (path or "").startswith("gymnasium.")
            if isinstance(part, ast.Attribute | ast.Name) and self._made.get(ast.unparse(part)) in self._of_gym:
                return True
        return False

    def _is_old_reset(self, node: ast.expr) -> bool:
        """Return whether an expression calls `reset` as gym had it."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.args or node.keywords:
            return False
        return node.func.attr == "reset" and self._made.get(ast.unparse(node.func.value)) in self._of_gym

    def _leave(self, inside: ast.expr) -> None:
        """Do not wrap environments that the program itself puts into a `CompatWrapper` before it uses them."""
        node: ast.expr | None = inside
        is_inside = False
        while node is not None:
            self._wrapped.add(node)
            is_inside |= isinstance(node, ast.Call) and self._unpacks_five(node.func)
            made = self._made.get(ast.unparse(node))
            if made is not None and made in self.makes and (is_inside or made not in self._plain):
                if self._places[made][: len(self._place)] == self._place:  # wherever it was made
                    del self.makes[made]
                return
            node = self._inner(node)

    def _note_environment(self, target: str, value: ast.expr) -> None:
        """Record the environment that a name or an attribute refers to from here on."""
        inside = value
        while isinstance(inside, ast.Attribute) and inside.attr in ("env", "unwrapped"):
            inside = inside.value
        is_compat = self._is_compat(inside)
        if inside is not value and ast.unparse(inside) == target and (is_compat or target in self._made):
            before = self._made.get(target, value)
            if before not in self._plain:
                self.makes.pop(before, None)
            self._make(value)  # an unwrapped environment has no wrapper
        key: ast.expr | None = value
        while key is not None and key not in self.makes and ast.unparse(key) not in self._made:
            key = self._inner(key)
        made = None if key is None or is_compat else self._made.get(ast.unparse(key), key)
        while isinstance(value, ast.Call) and value.args and (self._path(value.func) or "").startswith("parl.env."):
            value = value.args[0]  # such a wrapper has the API of its environment
        is_raw = made is not None and (value is made or self._makes(value))
        for names, holds in ((self._compat, is_compat), (self._raw, is_raw)):
            (names.add if holds else names.discard)(target)
        self._made.pop(target, None)
        if made is not None:
            self._made[target] = made

    def _inner(self, node: ast.expr) -> ast.expr | None:
        """Return the environment in a call of a wrapper, or the wrapper whose inside is used; None for others."""
        if isinstance(node, ast.Attribute) and node.attr in ("env", "unwrapped"):
            return node.value
        is_own = isinstance(node, ast.Call) and ast.unparse(node.func) in self._own_wrappers
        return node.args[0] if isinstance(node, ast.Call) and node.args and not is_own else None

    def _is_compat(self, node: ast.expr | None) -> bool:
        """Return whether an environment is in a `CompatWrapper`, so that it has gym's API."""
        while node is not None and not isinstance(node, ast.Attribute | ast.Name):
            if isinstance(node, ast.Call) and (self._path(node.func) or ast.unparse(node.func)).endswith(_WRAPPER):
                return True
            node = self._inner(node)
        return node is not None and ast.unparse(node) in self._compat

    def _branches(self, test: ast.expr, *branches: Sequence[ast.AST]) -> None:
        """Visit the branches of a condition, each with its own `_place`."""
        self.visit(test)
        outside = self._place
        for number, branch in enumerate(branches):
            self._place = (*outside, (test, number))
            for part in branch:
                self.visit(part)
        self._place = outside

    def _fetched(self, listed: ast.expr) -> None:
        """Drop `.name` from the results that a static graph fetches."""
        for part in listed.elts if isinstance(listed, ast.List | ast.Tuple) else ():
            is_name = isinstance(part, ast.Attribute) and part.attr == "name"
            if isinstance(part, ast.Attribute) and is_name and _last(self._origin_of(part.value)) != "data":
                start, end = part.value.end_col_offset or 0, part.end_col_offset or 0
                if part.value.end_lineno == part.end_lineno:
                    self._change_part(part.end_lineno or part.lineno, start, end, _NO_NAME, "")

    def _is_port(self, node: ast.expr) -> bool:
        """Return whether an expression is a port of `get_free_tcp_port`."""
        return _last(self._origin_of(node)) == "get_free_tcp_port"

    def _is_own_wrapper(self, base: ast.expr) -> bool:
        path = self._path(base)
        return _OWN_WRAPPER.fullmatch(path or "") is not None or ast.unparse(base) in self._own_wrappers

    def _makes(self, node: ast.expr) -> bool:
        """Return whether an expression makes or names an environment with Gymnasium's API."""
        inside = self._inside_of(node)
        if inside is not None:
            return self._makes(inside)
        if isinstance(node, ast.Name):
            return node.id in self._raw
        return isinstance(node, ast.Call) and self._path(node.func) in _MAKERS

    def _inside_of(self, node: ast.expr) -> ast.expr | None:
        """Return the environment in a wrapper of Gymnasium, or the wrapped one whose inside an expression uses."""
        if isinstance(node, ast.Call) and node.args and self._unpacks_five(node.func):
            return node.args[0]
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("env", "unwrapped")
            and not isinstance(node.value, ast.Name)
        ):
            return node.value
        return None

    def _is_number_of_paddle(self, node: ast.Subscript) -> bool:
        """Return whether an expression is `loss.numpy()[0]` of the result of `learn`, or `x.argmax().numpy()[0]`."""
        first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        if "paddle" not in self._modules or not first or not _is_call_of(node.value, "numpy"):
            return False
        tensor: Any = node.value
        while isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute):
            if tensor.func.attr == "learn":
                return True
            if tensor.args:
                return False
            if tensor.func.attr in ("argmax", "argmin", "max", "mean", "min", "sum") and not tensor.keywords:
                return True
            if tensor.func.attr not in ("cpu", "detach", "numpy"):
                return False
            tensor = tensor.func.value
        return self._is_loss(tensor)

    def _is_loss(self, node: ast.expr) -> bool:
        """Return whether an expression is a loss that `learn` returned, or one of its parts: `vtrace_loss.pi_loss`."""
        if isinstance(node, ast.Attribute) and _LEARNED.search(node.attr):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._losses

    def _note_origin(self, target: str, value: ast.expr) -> None:
        """Record the origin of the object that a name or an attribute refers to from here on."""
        if isinstance(value, ast.Call) and value.args and ast.unparse(value.func) in _COPIES:
            value = value.args[0]
        origin = self._origin_of(value)
        if origin is None and isinstance(value, ast.Name):
            self._origins.pop(target, None)  # a parameter, or a name of another file
        else:
            self._origins[target] = origin

    def _origin(self, node: ast.expr) -> str | None:
        """Return the origin of an expression's object: a path of PARL's, or the name of a class."""
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Name) and node.func.id in self._classes:
            return node.func.id
        path = self._path(node.func)
        return path if path and path.startswith("parl.") else None

    def _is_learner(self, node: ast.expr) -> bool | None:
        """Return whether an object is a model, an algorithm or an agent of PARL; None if unknown."""
        if ast.unparse(node) == "self" or (isinstance(node, ast.Call) and ast.unparse(node.func) == "super"):
            return self._self
        origin = self._origin_of(node)
        if origin in self._classes:
            return self._classes[origin]
        if origin is not None:
            return True if _LEARNERS.fullmatch(origin) else None
        if isinstance(node, ast.Attribute) and node.attr in _PARTS and ast.unparse(node) not in self._origins:
            return True if self._is_learner(node.value) else None
        return None

    def _is_learner_class(self, node: ast.expr) -> bool | None:
        """Return whether a class is a model, an algorithm or an agent of PARL; None if unknown."""
        if isinstance(node, ast.Name) and node.id in self._classes:
            return self._classes[node.id]
        path = self._path(node) or ""
        if _LEARNERS.fullmatch(path):
            return True
        return False if path.startswith(("parl.", "gym")) or ast.unparse(node) == "object" else None

    def _names_defined_by(self, owner: ast.expr) -> frozenset[str] | None:
        """Return the names that the program defines in an object of parl.algorithms; None for other objects."""
        if ast.unparse(owner) == "self":
            return self._defined
        origin = self._origin_of(owner) or ""
        return frozenset() if origin.startswith("parl.algorithms.") else self._algorithms.get(origin)

    def _names_of_algorithm(self, base: ast.expr) -> frozenset[str] | None:
        """Return the names that the program defines in a class of algorithms; None if it is not of parl.algorithms."""
        path = self._path(base) or ""
        return frozenset() if path.startswith("parl.algorithms.") else self._algorithms.get(ast.unparse(base))

    def _origin_of(self, node: ast.expr) -> str | None:
        """Return the path of PARL, or the class of the program, that made an object; None if unknown."""
        return self._origin(node) or self._origins.get(ast.unparse(node))

    def _origin_of_owner(self, call: ast.expr) -> str | None:
        """Return the path of PARL that made the object whose method is called."""
        method = call.func if isinstance(call, ast.Call) else None
        return self._origin_of(method.value) if isinstance(method, ast.Attribute) else None

    def _unpacks_five(self, wrapper: ast.expr) -> bool:
        """Return whether a class is, or derives from, one of Gymnasium's wrappers that unpack a step."""
        own = isinstance(wrapper, ast.Name) and wrapper.id in self._wrappers
        return own or _INSIDE.fullmatch(self._path(wrapper) or "") is not None

    def _path(self, node: ast.expr) -> str | None:
        """Return the path of an expression such as `parl.utils.utils.to_str`; None for attributes of objects."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._modules:
            return None
        return ".".join([self._modules[node.id], *reversed(parts)])

    def _bytes(self, line: int) -> bytes:
        return self.lines[line - 1].encode()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_call_of(node: ast.AST, method: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method


def _last(path: str | None) -> str | None:
    """Return `A2C` for `parl.algorithms.A2C`; None for a class of the program, whose name has no dot."""
    return path.rpartition(".")[2] if path and "." in path else None


def _imports_wrapper(statement: ast.stmt) -> bool:
    names = statement.names if isinstance(statement, ast.ImportFrom) else ()
    return any(name.name == _WRAPPER and name.asname in (None, _WRAPPER) for name in names)


def _own_generators(tree: ast.Module) -> Iterator[str]:
    """Yield the names and attributes that stand for a RandomState, and imported ones that may."""
    for part in ast.walk(tree):
        if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("gym"):
            continue  # gym.utils.seeding.np_random is a function
        if isinstance(part, ast.Import | ast.ImportFrom):
            yield from (name for one in part.names if (name := one.asname or one.name) == "np_random")
        elif isinstance(part, ast.Assign | ast.AnnAssign | ast.NamedExpr) and part.value is not None:
            made = [inside.func for inside in ast.walk(part.value) if isinstance(inside, ast.Call)]
            if any(ast.unparse(maker).rpartition(".")[2] == "RandomState" for maker in made):
                for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                    yield from (
                        ast.unparse(one) for one in ast.walk(target) if isinstance(one, ast.Attribute | ast.Name)
                    )


def _takes_apart(scope: ast.AST, name: str) -> bool:
    """Return whether a function or a program unpacks what a name or an attribute stands for, or takes its first."""
    for part in ast.walk(scope):
        unpacks = isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.List | ast.Tuple)
        if not unpacks and isinstance(part, ast.Subscript):
            unpacks = isinstance(part.slice, ast.Constant) and part.slice.value == 0
        if unpacks and isinstance(part, ast.Assign | ast.Subscript) and ast.unparse(part.value) == name:
            return True
    return False


def _attributes_of_self(node: ast.ClassDef) -> set[str]:
    """Return the names of the attributes that a class and its methods set."""
    targets = [each for part in node.body if isinstance(part, ast.Assign) for each in part.targets]
    of_self = [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"]
    return {one.attr for one in of_self if isinstance(one.ctx, ast.Store)}.union(*map(_names_in, targets))


def _has_gyms_api(methods: Mapping[str, ast.FunctionDef]) -> bool:
    """Return whether a class is an environment whose `reset` takes no seed and whose `step` returns four values."""
    if not {"reset", "step"} <= methods.keys():
        return False
    takes, inside = methods["reset"].args, list(ast.walk(methods["step"]))
    takes_seed = takes.kwarg is not None or "seed" in {one.arg for one in (*takes.args, *takes.kwonlyargs)}
    returned = [part.value for part in inside if isinstance(part, ast.Return)]
    is_old = any(isinstance(one, ast.Tuple) and len(one.elts) == _OLD_STEP for one in returned)
    return is_old and not takes_seed and not any(_is_call_of(part, "step") for part in inside)


def _has_text(node: ast.expr) -> bool:
    """Return whether a sum contains text."""
    if isinstance(node, ast.BinOp):
        return _has_text(node.left) or _has_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _names_in(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def _removed_from_gym(path: str) -> str | None:
    package, _, inside = path.partition(".")
    subpackage, _, name = inside.rpartition(".")
    names = (f"{subpackage.partition('.')[0]}.{name}", name)  # gym.wrappers.monitor.Monitor, gym.core.GoalEnv
    found = (_REMOVED_FROM_GYM[each] for each in names if each in _REMOVED_FROM_GYM)
    return next(found, None) if package in ("gym", "gymnasium") else None


def _samples(call: ast.expr, origin: str | None, algorithm: str) -> bool:
    """Return whether a call is `sample` of this algorithm, or of one that another file makes."""
    if not isinstance(call, ast.Call) or not _is_call_of(call, "sample"):
        return False
    unknown = origin is None and _OF_AN_ALGORITHM.fullmatch(ast.unparse(call.func)) is not None
    return unknown or _last(origin) == algorithm


def _imports_at(tree: ast.Module) -> tuple[int, int]:
    """Return line and column at which an import may be inserted: at the first one that is not from `__future__`."""
    after = 1
    for statement in tree.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
            line = min([statement.lineno, *(one.lineno for one in decorators)])
            return line, 0 if line >= after else statement.col_offset
        after = (statement.end_lineno or statement.lineno) + 1
    return after, 0


def _lines(source: str) -> list[str]:
    """Return the lines as Python counts them, with their ends; `str.splitlines` has more kinds of line ends."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)


def _applied(source: str, edits: Iterable[Edit]) -> str:
    lines = [line.encode() for line in _lines(source)]
    for edit in sorted(edits, reverse=True):  # from the end, so that earlier columns stay valid
        line = lines[edit.line - 1]
        lines[edit.line - 1] = line[: edit.start] + edit.text.encode() + line[edit.end :]
    return b"".join(lines).decode()
