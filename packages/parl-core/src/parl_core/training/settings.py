"""Settings of recipes by name: listed with type, value and meaning, read from texts, checked and changed.

    settings = settings_of("PPO", recipe)                      {"lr": Setting(...), "network.hidden": ...}
    recipe = with_settings("PPO", recipe, {"lr": 3e-4, "network.width": 256})

The names are those of the loop's settings, the algorithm's arguments, the options of `parl.networks.for_spaces` (after
`network.`) and the recipe's own fields, with their types and texts. If the loop and the algorithm have a setting of the
same meaning, the effective one is listed: a value that a loop passes to every update overrides an argument.
"""

import ast
import difflib
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from parl_core import contracts
from parl_core.algorithm import Algorithm
from parl_core.contracts._base import unused_settings
from parl_core.contracts.rnd import RND
from parl_core.errors import HyperparameterError
from parl_core.networks import NoveltyNetwork
from parl_core.recurrent import CausalTransformer
from parl_core.replay import Prioritized
from parl_core.schedules import constant, linear, piecewise, read_schedule, stages_of
from parl_core.space_networks import KINDS_OF_OPTIONS, for_spaces
from parl_core.team_networks import for_team
from parl_core.training.apex import ApexSettings
from parl_core.training.novelty import NoveltyReward
from parl_core.training.off_policy import OffPolicySettings
from parl_core.training.offline import OfflineSettings
from parl_core.training.on_policy import OnPolicySettings
from parl_core.training.recipes import NETWORKS, Recipe
from parl_core.training.trained import model_kind

__all__ = [
    "Setting",
    "algorithm_named",
    "as_text",
    "contract_of",
    "read_setting",
    "setting_named",
    "settings_of",
    "toml_lines",
    "with_settings",
]

Path = tuple[str, ...]

_BUDGETS = ("total_steps", "updates")
_BY_SPACES = ("act_dim", "nvec", "continuous_action", "n_actions", "n_agents", "act_space")  # the model has them
_BY_FORM = ("qmixer_model", "agent_index", "sample_probabilities")  # the command makes these, or has no use for them
_OLD_FORM = ("policy_lr", "value_lr", "epsilon")  # of PPO in PARL 1.x's form
_SAME = {"learning_rate": "lr", "initial_lr": "lr", "clip_param": "clip"}
_OF_EVERY_UPDATE = {OnPolicySettings: ("lr", "clip", "entropy_coef")}
_SCHEDULES: dict[str, Any] = {"linear": linear, "constant": constant, "piecewise": piecewise}
_SHAPES = {
    "network.width": "size of each of the layers of network.hidden.",
    "network.depth": "number of layers of network.hidden.",
}
_NOVELTY = {
    NoveltyReward: tuple(inspect.signature(NoveltyReward).parameters)[1:],
    RND: ("lr", "value_loss_coef"),
    NoveltyNetwork: ("features", "hidden"),
}
_RECURRENT, _MASKED = "parl train ppo ENV --set network.memory=lstm", "ppo, for observations with an entry action_mask"
_ELSEWHERE = {
    "her": "parl train sac ENV --set hindsight=0.8, of any algorithm with a replay memory",
    "ppolstm": _RECURRENT,
    "recurrentppo": _RECURRENT,
    "r2d2": "parl train dqn ENV --set network.memory=lstm",
    "maskableppo": _MASKED,
    "ppomask": _MASKED,
    "reinforce": "policygradient",
    "doubledqn": "ddqn",
    "per": "parl train dqn ENV --set prioritized=true",
    "ars": "in the package parl-evokit, with the other evolution strategies",
    "es": "in the package parl-evokit, with the other evolution strategies",
}
"""Names of algorithms in other libraries, and the names here."""
_OF_A_RECIPE = {"num_envs": int, "normalize": bool, "reward_scale": float, "evaluate_every": int | None}


@dataclass(frozen=True)
class Setting:
    """A setting of a run: a number, a text or a flag.

    Attributes:
        name: The name for `--set`.
        value: The recipe's value; None if the recipe leaves it to the algorithm or the network.
        kinds: Types of its values: `bool`, `int`, `float`, `str`, `NoneType`, `list` (sizes) and `"schedule"`.
        choices: The texts that it accepts; empty: any text, if `str` is among the kinds.
        text: The meaning of the setting.
        paths: The places of the setting in a recipe.
        default: The algorithm's own value, which applies if `value` is None; None if it depends on other settings.
    """

    name: str
    value: Any
    kinds: tuple[Any, ...]
    choices: tuple[str, ...] = ()
    text: str = ""
    paths: tuple[Path, ...] = field(default=())
    default: Any = None

    @property
    def effective(self) -> Any:
        """The applicable value; None if it depends on other settings, such as the size of a network."""
        return self.default if self.value is None else self.value

    @property
    def type(self) -> str:
        """Description of the types of its values."""
        words = {int: "whole number", float: "number", bool: "true or false", list: "sizes", str: "text"}
        named = [words[kind] for kind in self.kinds if kind in words and not (kind is str and self.choices)]
        return " or ".join([*named, *self.choices, *(["schedule"] if "schedule" in self.kinds else [])])

    def checked(self, value: Any) -> Any:
        """Return a value in the recipe's form.

        Raises:
            HyperparameterError: It is of another type.
        """
        kinds = self.kinds
        if isinstance(value, Mapping) and "schedule" in value:
            value = read_schedule(value)
        if (callable(value) and "schedule" in kinds) or (value is None and NoneType in kinds):
            return value
        if isinstance(value, bool):
            if bool in kinds:
                return value
        elif isinstance(value, (int, float)):
            if list in kinds and isinstance(value, int):
                return (value,)
            if int in kinds and float(value).is_integer():
                return int(value)
            if float in kinds:
                return float(value)
        elif isinstance(value, (list, tuple)):
            if list in kinds and all(isinstance(one, int) and not isinstance(one, bool) for one in value):
                return tuple(value)
        elif isinstance(value, str) and (value in self.choices or (str in kinds and not self.choices)):
            return value
        example = ", such as linear(1e-3, 0)" if "schedule" in kinds else ""
        raise HyperparameterError(f"{self.name} takes {self.type}{example}; got {as_text(value) or 'nothing'}")


@cache
def _contracts() -> dict[str, type[Algorithm]]:
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        own = vars(import_module(module.name)).items()
        found |= {name: cls for name, cls in own if inspect.isclass(cls) and cls.__module__ == module.name}
    return {name: cls for name, cls in found.items() if issubclass(cls, Algorithm)}


def contract_of(algorithm: str) -> type[Algorithm]:
    """Return the contract of an algorithm, which both backends' classes derive from.

    Raises:
        HyperparameterError: No algorithm has this name.
    """
    if algorithm not in _contracts():
        raise HyperparameterError(f"there is no algorithm {algorithm!r}")
    return _contracts()[algorithm]


def algorithm_named(name: str, known: Sequence[str], offered: Sequence[str] | None = None) -> str:
    """Return the name of an algorithm from a user's spelling: case, `-` and `_` do not count.

    Args:
        name: The spelling.
        known: All names that have a meaning.
        offered: The names that a message proposes; default: all.

    Raises:
        HyperparameterError: The algorithm is unknown; the message has similar names.
    """

    def folded(one: str) -> str:
        return one.lower().replace("-", "").replace("_", "")

    for one in known:
        if folded(one) == folded(name):
            return one
    if here := _ELSEWHERE.get(folded(name)):
        raise HyperparameterError(f"there is no algorithm {name!r}; here that is {here}")
    names = {folded(one): one for one in (known if offered is None else offered)}
    near = difflib.get_close_matches(folded(name), names, 1)
    hint = f"did you mean {names[near[0]].lower()}?" if near else f"there are {', '.join(sorted(names))}"
    raise HyperparameterError(f"there is no algorithm {name!r}; {hint}")


def settings_of(algorithm: str, recipe: Recipe) -> dict[str, Setting]:
    """Return all settings of a run of an algorithm, by name, with the recipe's values.

    Args:
        algorithm: Name of its class.
        recipe: The recipe with the values.

    Raises:
        HyperparameterError: The algorithm is unknown.
    """
    contract = contract_of(algorithm)
    arguments = dict(_arguments(contract, recipe))
    found: dict[str, Setting] = {}
    for one in (
        *_recipe_fields(contract, recipe),
        *_loop_fields(contract, recipe, arguments),
        *_network(algorithm, recipe),
        *_novelty(contract, recipe),
    ):
        found[one.name] = one
    for name, one in arguments.items():
        found.setdefault(_SAME.get(name, name), replace(one, name=_SAME.get(name, name)))
    if "lr" not in found and {"actor_lr", "critic_lr"} <= found.keys():
        both = found["actor_lr"], found["critic_lr"]
        value = both[0].value if both[0].value == both[1].value else None
        paths = both[0].paths + both[1].paths
        found["lr"] = replace(both[0], name="lr", value=value, text="actor_lr and critic_lr together.", paths=paths)
    if "network.hidden" in found and list in found["network.hidden"].kinds:
        for name, text in _SHAPES.items():
            found[name] = Setting(name, None, (int,), (), text)
    found = {name: one for name, one in found.items() if not isinstance(one.value, Mapping)}  # from a program
    if not contract.LEARNS_SEQUENCES:
        found = {name: one for name, one in found.items() if not _is_of_a_memory(name)}
    return dict(sorted(found.items(), key=lambda item: ("." in item[0], item[0])))


def with_settings(algorithm: str, recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values.

    Args:
        algorithm: Name of its class.
        recipe: The recipe to start from.
        values: New values by the names of `settings_of`, or by the last parts of these names if they are unambiguous;
            texts are read by `read_setting`. `network.width` and `network.depth` change the hidden layers' size and
            number. A setting of `prioritized` or `novelty` turns these on.

    Raises:
        HyperparameterError: The setting is unknown (the message has similar names), or a value does not fit it.
    """
    recipe, values = _switched(algorithm, recipe, values)
    known = settings_of(algorithm, recipe)
    unused = unused_settings(contract_of(algorithm))
    hidden = known["network.hidden"].value if "network.hidden" in known else None
    changes: dict[str, Any] = {}
    asked: list[str] = []
    lines: dict[Path, tuple[Setting, _LinearOverRun]] = {}
    for given, raw in values.items():
        value = read_setting(raw) if isinstance(raw, str) else raw
        if given in ("memory", "network.memory") and "network.memory" not in known:
            able = ", ".join(one.lower() for one in NETWORKS if contract_of(one).LEARNS_SEQUENCES)
            raise HyperparameterError(f"networks of {algorithm} have no memory; {able} learn with one")
        if given not in known and given.partition(".")[0] in unused:
            raise HyperparameterError(
                f"{algorithm} has no use for {given}: leave it out; `parl settings {algorithm.lower()}` lists what it "
                "takes"
            )
        if given == "compile" and given not in known:
            raise HyperparameterError(f"updates of {algorithm} are not compiled: leave out --compile")
        name = setting_named(given, known).name
        if name in _SHAPES:
            name, value = "network.hidden", _shape(hidden or (64, 64), name, value)
        setting = known[name]
        checked = setting.checked(_over_whole_run(value, recipe, setting))
        hidden = checked if name == "network.hidden" else hidden
        if checked != setting.value:
            asked.append(name)
        for path in setting.paths:
            _put(changes, path, checked)
            lines.pop(path, None)
            if isinstance(value, _LinearOverRun):
                lines[path] = setting, value
    changed = cast("Recipe", _changed(recipe, changes))
    for path, (setting, value) in lines.items():  # the number of updates depends on the other changes
        _put(changes, path, _over_whole_run(value, changed, setting))
    changed = cast("Recipe", _changed(recipe, changes)) if lines else changed
    _refuse_idle_sizes(algorithm, asked, changed.sizes.get("memory"))
    return changed


def _refuse_idle_sizes(algorithm: str, asked: Sequence[str], memory: str | None) -> None:
    """Reject sizes of layers that the network does not have.

    Raises:
        HyperparameterError: There are such sizes; the message names the setting and its replacement.
    """
    if "network.memory_size" in asked and memory is None:
        raise HyperparameterError(
            "network.memory_size has no effect without network.memory: leave it out, or set network.memory"
        )
    if "network.hidden" in asked and memory is not None and contract_of(algorithm).TEAM:
        raise HyperparameterError(
            f"network.hidden, width and depth have no effect with network.memory={memory}: set network.memory_size, "
            "or network.memory=none"
        )


def _switched(algorithm: str, recipe: Recipe, values: Mapping[str, Any]) -> tuple[Recipe, Mapping[str, Any]]:
    """Return a recipe with the parts turned on or off that values name, and the remaining values.

    Raises:
        HyperparameterError: A part is turned off and has settings, or the algorithm has no such part.
    """
    for name, usual in (("prioritized", Prioritized()), ("novelty", {})):
        inside = [one for one in values if one.startswith(f"{name}.")]
        if name not in values and not inside:
            continue
        setting = settings_of(algorithm, recipe).get(name)
        if setting is None or len(setting.paths[0]) > 2:  # Ape-X always draws by priority
            continue
        wanted = True
        if name in values:
            value = values[name]
            wanted = bool(setting.checked(read_setting(value) if isinstance(value, str) else value))
        if inside and not wanted:
            raise HyperparameterError(f"{inside[0]} has no effect without {name}: leave it out, or turn {name} on")
        owner = recipe.loop if name == "prioritized" else recipe
        if not wanted or getattr(owner, name) is None:
            owner = replace(owner, **{name: usual if wanted else None})
            recipe = replace(recipe, loop=owner) if name == "prioritized" else owner
        values = {one: value for one, value in values.items() if one != name}
    return recipe, values


class _Changes(dict[str, Any]):
    """Changes of a part, by the names of its entries."""


def _put(changes: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        changes = changes.setdefault(key, _Changes())
    changes[path[-1]] = value


def _changed(part: Any, changes: Mapping[str, Any]) -> Any:
    """Return a part of a recipe with all changes at once, because settings are checked together."""
    if is_dataclass(part):
        inside: Mapping[str, Any] = {one.name: getattr(part, one.name) for one in fields(part)}
    else:
        inside = part or {}
    new = {
        name: _changed(inside.get(name), value) if isinstance(value, _Changes) else value
        for name, value in changes.items()
    }
    return replace(part, **new) if is_dataclass(part) and not isinstance(part, type) else {**inside, **new}


def read_setting(text: str) -> Any:
    """Return the value of a text: a number (also inf), true or false, none, sizes such as 256,256, or a
    schedule.

    Schedules are written like calls of `parl_core.schedules`: `linear(1e-3, 0, 100000)`, or `linear(1e-3, 0)` for one
    over the whole run; `piecewise([(0, 1e-3), (5000, 1e-4)])`.

    Raises:
        HyperparameterError: The text begins like a schedule but is not one.
    """
    text = text.strip()
    if text.lower() in ("true", "yes", "on", "false", "no", "off"):
        return text.lower() in ("true", "yes", "on")
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("inf", "-inf"):
        return float(text)
    if match := re.fullmatch(r"(linear|constant|piecewise)\s*(\(.*\))", text):
        try:
            numbers = ast.literal_eval(match[2])
            given = numbers if isinstance(numbers, tuple) else (numbers,)
            if match[1] == "linear" and len(given) == 2:
                return _LinearOverRun(*map(float, given))
            return _SCHEDULES[match[1]](*given)
        except (ValueError, SyntaxError, TypeError) as error:
            raise HyperparameterError(f"{text!r} is not a schedule: write linear(1e-3, 0, 100000)") from error
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def as_text(value: Any) -> str:
    """Return a value as text for `--set` and TOML."""
    if isinstance(value, Mapping) and "schedule" in value:
        value = read_schedule(value)
    if isinstance(value, _LinearOverRun):
        return f"linear({value.start}, {value.end})"
    if callable(value):
        stages = stages_of(value)["stages"]
        numbers = {"constant": stages[0][1:], "piecewise": [[tuple(one) for one in stages]]}
        kind = stages_of(value)["schedule"]
        if kind == "linear":
            (begin, start), (last, end) = stages
            numbers["linear"] = [start, end, last - begin] if begin == 0 else []
            if begin:
                return f"piecewise({[tuple(one) for one in stages]})"
        return f"{kind}({', '.join(map(str, numbers[kind]))})"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "()"
    return str(value)


def toml_lines(values: Mapping[str, Any]) -> list[str]:
    """Return settings as the lines of a TOML table that `--config` reads.

    A name with further settings (`prioritized` of `prioritized.alpha`) is left out, because a name in TOML
    is either a value or a table; its settings turn it on.
    """
    parts = {name.rpartition(".")[0] for name in values}
    return [f"{name} = {_toml_value(value)}" for name, value in values.items() if name not in parts]


def _toml_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    if isinstance(value, float):
        return as_text(value)  # TOML writes inf, and JSON Infinity
    is_text_here = value is None or callable(value) or isinstance(value, Mapping)
    return json.dumps(as_text(value) if is_text_here else value, ensure_ascii=False)


@dataclass(frozen=True)
class _LinearOverRun:
    """A linear schedule over a run whose length is not known yet."""

    start: float
    end: float

    def __call__(self, step: float) -> float:
        raise AssertionError(step)


def _over_whole_run(value: Any, recipe: Recipe, setting: Setting) -> Any:
    if not isinstance(value, _LinearOverRun):
        return value
    steps: float = recipe.steps
    loop, part = recipe.loop, setting.paths[0][0]
    if part == "algorithm" and isinstance(loop, (OffPolicySettings, ApexSettings)):  # counts updates
        steps = max((steps - loop.learning_starts) / loop.train_every * loop.gradient_steps, 1)
    elif part == "algorithm" and isinstance(loop, OnPolicySettings):  # likewise: COMA counts one for each rollout
        steps = math.ceil(steps / (loop.n_steps * recipe.num_envs))
    elif part == "novelty" and isinstance(loop, OnPolicySettings):  # likewise
        usual = {name: one.default for name, one in inspect.signature(NoveltyReward).parameters.items()}
        chosen, rows = {**usual, **(recipe.novelty or {})}, loop.n_steps * recipe.num_envs
        minibatches = math.ceil(max(round(chosen["share"] * rows), 1) / max(chosen["minibatch_size"], 1))
        steps = math.ceil(steps / rows) * chosen["epochs"] * minibatches
    return linear(value.start, value.end, steps)


def _shape(hidden: Any, name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HyperparameterError(f"{name} takes a whole number of at least 1; got {as_text(value)}")
    sizes = hidden if isinstance(hidden, (tuple, list)) else (hidden,)
    return (value,) * max(len(sizes), 1) if name == "network.width" else (sizes[0] if sizes else 64,) * value


_OPTIONS = {"steps": "steps", "total_steps": "steps", "seed": "seed", "goal": "goal", "backend": "backend"}
"""Names that are taken for settings, and the options of the command that they mean."""


def setting_named(name: str, known: Mapping[str, Setting]) -> Setting:
    """Return the setting that a name means: its own, one of the same meaning, or its last part if that is unambiguous.

    Args:
        name: The name as a user writes it.
        known: The result of `settings_of`.

    Raises:
        HyperparameterError: The setting is unknown; the message has similar names.
    """
    name = name.replace("-", "_")
    for one in (name, _SAME.get(name, name)):
        if one in known:
            return known[one]
    ends = [one for one in known if one.endswith(f".{name}") and not one.startswith("novelty.")]
    ends = [one for one in ends if one.count(".") == min(other.count(".") for other in ends)]
    if len(ends) == 1:
        return known[ends[0]]
    if name in _OPTIONS:
        raise HyperparameterError(f"there is no setting {name!r}, but an option: --{_OPTIONS[name]}")
    names = dict(zip(known, known, strict=True))
    names |= {one.rpartition(".")[2]: one for one in names if not one.startswith("novelty.")}
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {names[near[0]]}?" if near else f"; there are {', '.join(known)}"
    raise HyperparameterError(f"there is no setting {name!r}{hint}")


# Sources of settings


def _is_of_a_memory(name: str) -> bool:
    return name.startswith("network.memory") or name in ("burn_in", "sequence_length")


def _recipe_fields(contract: type[Algorithm], recipe: Recipe) -> Iterator[Setting]:
    texts = _texts(Recipe, "Attributes")
    stepped = isinstance(recipe.loop, (OnPolicySettings, OffPolicySettings))
    wanted = {"evaluate_every", *(("num_envs", "normalize") if stepped else ())}
    wanted |= {"reward_scale"} if isinstance(recipe.loop, OfflineSettings) else set()
    for name, hint in _OF_A_RECIPE.items():
        if name in wanted - unused_settings(contract):
            kinds, choices = _kinds(hint)
            yield Setting(name, getattr(recipe, name), kinds, choices, texts.get(name, ""), ((name,),))


def _loop_fields(contract: type[Algorithm], recipe: Recipe, arguments: dict[str, Setting]) -> Iterator[Setting]:
    """Yield the loop's settings, and remove the arguments that they override."""
    loop = recipe.loop
    texts, hints = _texts(type(loop), "Attributes"), get_type_hints(type(loop))
    of_rollouts = _texts(OnPolicySettings, "Attributes")
    defaults: dict[str, Any] = {}
    for name in _OF_EVERY_UPDATE.get(type(loop), ()):
        for argument in [one for one in arguments if _SAME.get(one, one) == name]:
            defaults[name] = arguments.pop(argument).value
    if isinstance(loop, OnPolicySettings) or "entropy_coef" in getattr(loop, "rates", {}):
        other_sign = arguments.pop("entropy_coeff", None)
        if other_sign is not None and isinstance(other_sign.value, float):
            defaults["entropy_coef"] = -other_sign.value
    targets = {"gamma": "gamma", "gae_lambda": "td_lambda"} if "td_lambda" in arguments else {}
    unused = unused_settings(contract)
    for one in fields(loop):
        value = getattr(loop, one.name)
        if one.name in _BUDGETS or one.name in unused:
            continue
        text = texts.get(one.name, "")
        if one.name in ("rates", "exploration"):
            for key, now in value.items():
                name = _SAME.get(key, key) if one.name == "rates" else f"{one.name}.{key}"
                if one.name == "rates":
                    text = of_rollouts.get(key, "")
                    for argument in [other for other in arguments if _SAME.get(other, other) == name]:
                        text = arguments.pop(argument).text
                yield Setting(name, now, (float, "schedule"), (), text, (("loop", one.name, key),))
            continue
        if one.name == "prioritized":
            yield Setting("prioritized", value is not None, (bool,), (), text, (("loop", "prioritized"),))
            own = _texts(Prioritized, "Attributes")
            for part in fields(Prioritized) if value is not None else ():
                path = "loop", "prioritized", part.name
                yield Setting(
                    f"prioritized.{part.name}", getattr(value, part.name), (float,), (), own[part.name], (path,)
                )
            continue
        paths: tuple[Path, ...] = (("loop", one.name),)
        if one.name in targets:  # the loop must use the values with which the algorithm was made
            paths = (*paths, ("algorithm", targets[one.name]))
            arguments.pop(targets[one.name])
        if one.name in arguments:  # the algorithm's own argument applies
            continue
        kinds, choices = _kinds(hints[one.name])
        if one.name == "n_steps" and "sample_batch_steps" in arguments:
            arguments.pop("sample_batch_steps")
            paths = (*paths, ("algorithm", "sample_batch_steps"))
        if kinds and kinds != (NoneType,):
            yield Setting(one.name, value, kinds, choices, text, paths, defaults.get(one.name))


def _arguments(contract: type[Algorithm], recipe: Recipe) -> Iterator[tuple[str, Setting]]:
    texts = {name: text for cls in reversed(contract.__mro__) for name, text in _texts(cls, "Args").items()}
    defaults: Mapping[str, Any] = getattr(contract, "DEFAULTS", {})
    for name, parameter in list(inspect.signature(contract).parameters.items())[1:]:
        if name in (*_BY_SPACES, *_BY_FORM) or (contract.__name__ == "PPO" and name in _OLD_FORM):
            continue
        kinds, choices = _kinds(parameter.annotation)
        if set(kinds) <= {NoneType}:
            continue
        value = recipe.algorithm.get(name, parameter.default)
        value = defaults.get(name) if value is None else value
        if defaults.get(name) is not None:  # in place of None, which would have no effect
            kinds = tuple(kind for kind in kinds if kind is not NoneType)
        if name in (common := _texts(Algorithm, "Args")):
            texts[name] = common[name]
        yield name, Setting(name, value, kinds, choices, texts.get(name, ""), (("algorithm", name),))


def _network(algorithm: str, recipe: Recipe) -> Iterator[Setting]:
    kind = model_kind(algorithm)
    if contract_of(algorithm).TEAM:
        texts = _texts(for_team, "Args")
        for name, parameter in inspect.signature(for_team).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and name != "networks":
                kinds, choices = _kinds(parameter.annotation)
                value = recipe.sizes.get(name, parameter.default)
                yield Setting(f"network.{name}", value, kinds, choices, texts.get(name, ""), (("sizes", name),))
        return
    if kind is None:  # a special network, whose sizes are in the recipe
        for name, value in recipe.sizes.items():
            of = (list,) if isinstance(value, (tuple, list)) else (type(value),)
            yield Setting(f"network.{name}", value, of, (), "", (("sizes", name),))
        return
    texts = _texts(for_spaces, "Args")
    for name, parameter in inspect.signature(for_spaces).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY or name == "networks":
            continue
        if kind not in KINDS_OF_OPTIONS.get(name, (kind,)):
            continue
        if name == "memory_options":
            yield from _memory_options(recipe)
            continue
        kinds, choices = _kinds(parameter.annotation)
        value = recipe.sizes.get(name, parameter.default)
        yield Setting(f"network.{name}", value, kinds, choices, texts.get(name, ""), (("sizes", name),))


def _memory_options(recipe: Recipe) -> Iterator[Setting]:
    """Yield the options of the memory that has some; they have values where it is chosen."""
    chosen, texts = recipe.sizes.get("memory") == "transformer", _texts(CausalTransformer, "Args")
    given = recipe.sizes.get("memory_options", {})
    for name, parameter in inspect.signature(CausalTransformer).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kinds, _ = _kinds(parameter.annotation)
            value = given.get(name, parameter.default) if chosen else None
            text = f"For a transformer: {texts[name]}"
            yield Setting(
                f"network.memory_options.{name}", value, kinds, (), text, (("sizes", "memory_options", name),)
            )


def _novelty(contract: type[Algorithm], recipe: Recipe) -> Iterator[Setting]:
    """Yield the settings of a second reward; they have values where it is on."""
    if not isinstance(recipe.loop, OnPolicySettings) or contract.TEAM:
        return
    on = recipe.novelty is not None
    text = "rnd: an additional reward for novelty, by random network distillation; evaluations do not include it."
    yield Setting("novelty", "rnd" if on else None, (str, NoneType), ("rnd",), text, (("novelty",),))
    for owner, names in _NOVELTY.items():
        texts, parameters = _texts(owner, "Args"), inspect.signature(owner).parameters
        for name in names:
            kinds, _ = _kinds(parameters[name].annotation)
            value = (recipe.novelty or {}).get(name, parameters[name].default) if on else None
            path = "novelty", name
            yield Setting(f"novelty.{name}", value, kinds, (), texts[name], (path,))


def _kinds(hint: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the types of values that an annotation allows, and the texts of its literals."""
    kinds: list[Any] = []
    choices: list[str] = []
    for part in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        origin = get_origin(part)
        if part in (bool, int, float, str, NoneType):
            kinds.append(part)
        elif part is None:
            kinds.append(NoneType)
        elif origin is Literal:
            choices += [one for one in get_args(part) if isinstance(one, str)]
            kinds.append(str)
        elif origin in (Union, UnionType):
            inner, texts = _kinds(part)
            kinds += inner
            choices += texts
        elif origin is Sequence or (origin is tuple and int in get_args(part)):
            kinds.append(list)
        elif inspect.isclass(origin) and origin.__name__ == "Callable":
            kinds.append("schedule")
    return tuple(dict.fromkeys(kinds)), tuple(choices)


def _texts(owner: Any, section: str) -> dict[str, str]:
    """Return the texts of a section of a docstring by name."""
    lines = inspect.cleandoc(owner.__doc__ or "").splitlines()
    found: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in lines:
        if not line.startswith(" ") and line.strip():
            inside = line.strip() == f"{section}:"
            continue
        if not inside or not line.strip():
            continue
        match = re.match(r" {4}([\w, ]+): (.*)", line)
        if match:
            names = [name.strip() for name in match[1].split(",")]
            found.update(dict.fromkeys(names, match[2]))
        else:
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return found
