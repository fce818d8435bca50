"""The settings, typed and frozen, with their defaults and ranges.

The tree is the nested form of the PARL 1.x manual: `solver { type optimizer sampling update }`. `Config.load` reads
prototxt (that form and the flat one of the original's public code), TOML, JSON and dictionaries; see `config_reader`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from enum import Enum
from math import isfinite
from os import PathLike
from typing import Any, Union

import numpy as np

from parl_evokit._config_reader import load_settings, to_prototxt
from parl_evokit._samples import INFINITE_IN_FLOAT32
from parl_evokit.errors import ConfigError
from parl_evokit.noise._spec import LARGEST_TABLE, SMALLEST_TABLE, NoiseSpec

__all__ = [
    "AdamConfig",
    "AdaptiveStdConfig",
    "AsyncConfig",
    "CemConfig",
    "CensorKind",
    "CmaConfig",
    "Config",
    "GaConfig",
    "GaussianConfig",
    "GuardConfig",
    "KeyKind",
    "MomentumConfig",
    "OptimizerConfig",
    "OptimizerKind",
    "RestartKind",
    "SamplingConfig",
    "SamplingKind",
    "ScheduleConfig",
    "ScheduleKind",
    "ShapingKind",
    "SolverConfig",
    "SolverKind",
    "StaleKind",
    "UpdateConfig",
]


POWERS = Context(prec=20)
LEAST_STD, LARGEST_STD = 1e-30, 1e37  # so that the largest and the smallest noise are float32 numbers above 0


class SolverKind(Enum):
    """The evolutionary algorithm."""

    BASIC_ES = "BASIC_ES"
    CMA_ES = "CMA_ES"
    SEP_CMA_ES = "SEP_CMA_ES"
    GA = "GA"
    PGPE = "PGPE"
    SNES = "SNES"
    ARS = "ARS"
    CEM = "CEM"
    LM_MA_ES = "LM_MA_ES"
    CR_FM_NES = "CR_FM_NES"


class OptimizerKind(Enum):
    """The rule that turns the estimated gradient into a step."""

    SGD = "SGD"
    MOMENTUM = "MOMENTUM"
    ADAM = "ADAM"


class SamplingKind(Enum):
    """The kind of noise that perturbs the parameters."""

    GAUSSIAN_SAMPLING = "GAUSSIAN_SAMPLING"
    CMA_SAMPLING = "CMA_SAMPLING"
    GA_SAMPLING = "GA_SAMPLING"


class ShapingKind(Enum):
    """The rule by which rewards become utilities; see `shaping`."""

    CENTERED_RANK = "CENTERED_RANK"
    CENTERED = "CENTERED"
    NORMALIZED = "NORMALIZED"
    SIGN = "SIGN"
    TOP_K = "TOP_K"


class StaleKind(Enum):
    """The rule for samples of older models.

    Attributes:
        AUTO: One of the other rules, chosen at each update from its samples; the report names it. See `openai_es`.
        GROUPED: Samples are ranked within their model, and weighted by `stale_decay` to the power of age.
        POOLED: All samples are ranked together, and weighted in the same way.
        IMPORTANCE: Samples are weighted by clipped ratios of densities, for up to 100 parameters; see `openai_es`.
    """

    AUTO = "AUTO"
    GROUPED = "GROUPED"
    POOLED = "POOLED"
    IMPORTANCE = "IMPORTANCE"


class CensorKind(Enum):
    """The rule for samples whose reward did not arrive in time.

    Attributes:
        DEFAULT: The sample gets `default_reward`, such as 0 for no click.
        WORST: The sample gets the smallest reward of the other samples of the update.
        DROP: The sample does not count, and the update no longer waits for its reward.
    """

    DEFAULT = "DEFAULT"
    WORST = "WORST"
    DROP = "DROP"


class RestartKind(Enum):
    """The rule by which CMA restarts after it has converged; see `CMAES`."""

    NONE = "NONE"
    IPOP = "IPOP"
    BIPOP = "BIPOP"


class ScheduleKind(Enum):
    """The way in which the factor of a setting changes over the updates."""

    CONSTANT = "CONSTANT"
    LINEAR = "LINEAR"
    EXPONENTIAL = "EXPONENTIAL"


class KeyKind(Enum):
    """The source of keys: random numbers of the system, or (worker, counter) for repeatable runs.

    The counter continues from the saved solver, so a restarted service would repeat the keys drawn since the last save.
    """

    SECRETS = "SECRETS"
    COUNTER = "COUNTER"


class _Settings:
    """Base of all settings; numpy scalars become plain numbers, since their precision would pass on to results."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            plain = tuple(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
            object.__setattr__(self, name, plain)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class ScheduleConfig(_Settings):
    """The factor of a setting, which depends on the number of updates; the same bits on every machine.

    Attributes:
        type: CONSTANT (always 1), LINEAR, or EXPONENTIAL (multiplied by the same number at each update).
        final: The last value of the factor, above 0.
        updates: The number of updates after which the factor is `final` and stays there; 1 or more.
    """

    type: ScheduleKind = ScheduleKind.CONSTANT
    final: float = 0.1
    updates: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.final > 0.0 and isfinite(self.final), "final", self.final, "above 0")
        _require(self.updates >= 1, "updates", self.updates, "1 or more")

    def factor(self, updates: int) -> float:
        """Return the factor after this number of updates."""
        if self.type is ScheduleKind.CONSTANT:
            return 1.0
        done = min(updates, self.updates)
        if self.type is ScheduleKind.LINEAR:
            return 1.0 + (self.final - 1.0) * (done / self.updates)
        # Decimal rounds powers correctly, which the machine's `pow` need not.
        return float(POWERS.power(Decimal(self.final), POWERS.divide(Decimal(done), Decimal(self.updates))))


@dataclass(frozen=True)
class MomentumConfig(_Settings):
    """Settings of `optimizers.Momentum`.

    Attributes:
        momentum: Decay rate of the mean of gradients, 0 to below 1.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "at least 0 and below 1")


@dataclass(frozen=True)
class AdamConfig(_Settings):
    """Settings of `optimizers.Adam`.

    Attributes:
        beta1: Decay rate of the mean of gradients, 0 to below 1.
        beta2: Decay rate of the mean of squared gradients, 0 to below 1.
        epsilon: Number that is added to the denominator, above 0.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0.0 <= self.beta1 < 1.0, "beta1", self.beta1, "at least 0 and below 1")
        _require(0.0 <= self.beta2 < 1.0, "beta2", self.beta2, "at least 0 and below 1")
        _require(self.epsilon > 0.0 and isfinite(self.epsilon), "epsilon", self.epsilon, "above 0")


@dataclass(frozen=True)
class OptimizerConfig(_Settings):
    """Settings of the optimizer.

    Attributes:
        type: The rule; `momentum` and `adam` apply if it names them.
        base_lr: Learning rate, above 0.
        momentum: Settings of MOMENTUM.
        adam: Settings of ADAM.
        schedule: The factor of `base_lr`.
    """

    type: OptimizerKind = OptimizerKind.SGD
    base_lr: float = 1e-3
    momentum: MomentumConfig = field(default_factory=MomentumConfig)
    adam: AdamConfig = field(default_factory=AdamConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.base_lr > 0.0 and isfinite(self.base_lr), "base_lr", self.base_lr, "above 0")


@dataclass(frozen=True)
class GaussianConfig(_Settings):
    """Settings of the noise.

    `seed` and a key determine the noise; for a repeatable run, also set `keys: COUNTER`.

    Attributes:
        std: Standard deviation, 1e-30 to 1e37.
        cached: True to take noise from one shared table instead of computing it for each sample.
        seed: Seed of all noise, 0 to 2**64 - 1.
        cache_size: Number of entries of the table, 64 to 2**31; it may be smaller than the model.
        mirrored: True to draw keys in pairs of opposite noise.
        schedule: The factor of `std` in BASIC_ES and ARS; the other algorithms adapt `std` themselves.
    """

    std: float = 1.0
    cached: bool = False
    seed: int = 18
    cache_size: int = 100_000
    mirrored: bool = True
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(LEAST_STD <= self.std <= LARGEST_STD, "std", self.std, f"from {LEAST_STD:g} to {LARGEST_STD:g}")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "from 0 to 2**64 - 1")
        _require(
            SMALLEST_TABLE <= self.cache_size <= LARGEST_TABLE,
            "cache_size",
            self.cache_size,
            f"from {SMALLEST_TABLE} to 2**31",
        )

    @property
    def noise(self) -> NoiseSpec:
        """Specification of the noise, made of `seed`, `cached` and `cache_size`."""
        return NoiseSpec(self.seed, self.cached, self.cache_size)


@dataclass(frozen=True)
class CmaConfig(_Settings):
    """Settings of CMA_ES, SEP_CMA_ES, LM_MA_ES and CR_FM_NES.

    Attributes:
        population: Number of samples that an update waits for; 0 stands for 4 + floor(3 * ln(parameters)). A search
            that is resumed keeps its own.
        restarts: The rule for restarts after the search has converged.
        max_restarts: Maximum number of times that restarts double the population; 0 or more.
        lower: Lower bounds of the parameters of all samples: none, one for all parameters, or one for each. Other
            algorithms reject bounds. No standard deviation exceeds a third of the width between both bounds. Near a
            bound, `std` of the noise is that of coordinates of which parameters are a smooth function.
        upper: Upper bounds, in the same form.
        integers: Indices, from 0, of the parameters that are whole numbers; for CMA_ES and SEP_CMA_ES.
    """

    population: int = 0
    restarts: RestartKind = RestartKind.NONE
    max_restarts: int = 9
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.population == 0 or self.population >= 2, "population", self.population, "0, or 2 or more")
        _require(self.max_restarts >= 0, "max_restarts", self.max_restarts, "0 or more")


@dataclass(frozen=True)
class GaConfig(_Settings):
    """Selection of the genetic algorithm.

    Attributes:
        parents: Number of best samples that become parents; 1 or more.
        elites: Number of present parents that may stay parents with their rewards; 0 or more.
    """

    parents: int = 20
    elites: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.parents >= 1, "parents", self.parents, "1 or more")
        _require(self.elites >= 0, "elites", self.elites, "0 or more")


@dataclass(frozen=True)
class CemConfig(_Settings):
    """Settings of the cross-entropy method.

    Attributes:
        elite_share: Share of the samples that are elites, above 0 to 1.
        smoothing: Weight of the elites in the new mean and deviations, above 0 to 1; the old ones have the rest.
        extra_std: Deviation of noise that is added to the deviations of the elites and declines to 0; 0 or more.
        extra_updates: Number of updates in which it declines to 0; 1 or more.
    """

    elite_share: float = 0.25
    smoothing: float = 0.8
    extra_std: float = 0.0
    extra_updates: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0.0 < self.elite_share <= 1.0, "elite_share", self.elite_share, "above 0 and at most 1")
        _require(0.0 < self.smoothing <= 1.0, "smoothing", self.smoothing, "above 0 and at most 1")
        _require(self.extra_std >= 0.0 and isfinite(self.extra_std), "extra_std", self.extra_std, "0 or more")
        _require(self.extra_updates >= 1, "extra_updates", self.extra_updates, "1 or more")


@dataclass(frozen=True)
class AdaptiveStdConfig(_Settings):
    """Settings of PGPE and SNES, which adapt a standard deviation for each parameter.

    Attributes:
        learning_rate: Learning rate of the deviations, 0 or more; 0 stands for the default of the algorithm.
        max_change: For PGPE, the largest relative change of a deviation in one update, above 0 to below 1.
    """

    learning_rate: float = 0.0
    max_change: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.learning_rate >= 0.0 and isfinite(self.learning_rate), "learning_rate", self.learning_rate, "0 or more"
        )
        _require(0.0 < self.max_change < 1.0, "max_change", self.max_change, "above 0 and below 1")


@dataclass(frozen=True)
class SamplingConfig(_Settings):
    """Settings of the perturbation.

    Attributes:
        type: The kind of perturbation.
        gaussian_sampling: Seed, table and std of the noise, for all kinds.
        cma_sampling: Settings of the CMA family.
        ga_sampling: Settings of the genetic algorithm.
    """

    type: SamplingKind = SamplingKind.GAUSSIAN_SAMPLING
    gaussian_sampling: GaussianConfig = field(default_factory=GaussianConfig)
    cma_sampling: CmaConfig = field(default_factory=CmaConfig)
    ga_sampling: GaConfig = field(default_factory=GaConfig)


@dataclass(frozen=True)
class UpdateConfig(_Settings):
    """Settings of the use of rewards.

    Attributes:
        shaping: The rule that turns rewards into utilities.
        top_k: Number of best directions that count with `shaping: TOP_K`; 1 or more.
        weight_decay: Multiple of the parameters that is added to the gradient; 0 or more.
        max_age: Largest age, in updates, of the models whose samples count; 0 or more.
        stale: The rule for samples of older models.
        stale_decay: Base of the weight of a sample with GROUPED and POOLED; the age is the exponent; 0 to 1.
        min_samples: Smallest number of usable samples for an update; 1 or more.
        only_tokens: True if rewards in a log count only with a token.
        reward_timeout_s: Time after which an update no longer waits for the reward of a served sample, in seconds; 0
            for no limit. Where samples of earlier models count, the last update that can use a sample does not wait
            either.
        censoring: The rule for such a sample.
        default_reward: Reward of such a sample with `censoring: DEFAULT`.
    """

    shaping: ShapingKind = ShapingKind.CENTERED_RANK
    top_k: int = 8
    weight_decay: float = 0.0
    max_age: int = 8
    stale: StaleKind = StaleKind.AUTO
    stale_decay: float = 0.8
    min_samples: int = 2
    only_tokens: bool = False
    reward_timeout_s: float = 0.0
    censoring: CensorKind = CensorKind.DEFAULT
    default_reward: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.top_k >= 1, "top_k", self.top_k, "1 or more")
        _require(
            self.weight_decay >= 0.0 and isfinite(self.weight_decay), "weight_decay", self.weight_decay, "0 or more"
        )
        _require(self.max_age >= 0, "max_age", self.max_age, "0 or more")
        _require(0.0 <= self.stale_decay <= 1.0, "stale_decay", self.stale_decay, "from 0 to 1")
        _require(self.min_samples >= 1, "min_samples", self.min_samples, "1 or more")
        timeout = self.reward_timeout_s
        _require(timeout >= 0.0 and isfinite(timeout), "reward_timeout_s", timeout, "0 or more")
        default = self.default_reward
        _require(abs(default) < INFINITE_IN_FLOAT32, "default_reward", default, "a finite float32 number")


@dataclass(frozen=True)
class GuardConfig(_Settings):
    """Guard rails of an online product against its own updates; all off by default.

    Attributes:
        max_update_ratio: Largest norm of an update relative to the norm of the parameters, or to that of a typical
            perturbation if this is larger; 0 for no limit.
        control_share: Share of the traffic that gets the present model without noise, 0 to below 1.
        holdout_share: Share of the traffic that gets the trusted model without noise, 0 to below 1; with 0.95, a new
            model is a canary that gets 5 %. While the present model is the trusted one, as it always is without
            `rollback`, this share is control traffic.
        rollback: True to return to the trusted model when the rewards of the present models are worse. The comparison
            is between the arms of `control_share` and `holdout_share`, both of which must be above 0.
        min_control: Number of rewards in each arm for one difference; 2 or more.
        level: Probability of ever leaving a model that is no worse, if the variance of rewards does not grow
            strongly within a comparison; above 0 to 0.5.
        margin: Largest loss at which the present model still becomes the trusted one, in standard deviations of one
            reward: for clicks at a rate of 20 %, 0.1 tolerates a loss of 4 percentage points. Tolerated losses may add
            up, because the next comparison is with this model; above 0.
    """

    max_update_ratio: float = 0.0
    control_share: float = 0.0
    holdout_share: float = 0.0
    rollback: bool = False
    min_control: int = 30
    level: float = 0.01
    margin: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.max_update_ratio
        _require(ratio >= 0.0 and isfinite(ratio), "max_update_ratio", ratio, "0 or more")
        _require(0.0 <= self.control_share < 1.0, "control_share", self.control_share, "at least 0 and below 1")
        _require(0.0 <= self.holdout_share < 1.0, "holdout_share", self.holdout_share, "at least 0 and below 1")
        together = self.control_share + self.holdout_share
        _require(together < 1.0, "control_share and holdout_share together", together, "below 1")
        _require(self.min_control >= 2, "min_control", self.min_control, "2 or more")
        _require(0.0 < self.level <= 0.5, "level", self.level, "above 0 and at most 0.5")
        _require(self.margin > 0.0 and isfinite(self.margin), "margin", self.margin, "above 0")
        compared = min(self.control_share, self.holdout_share) > 0.0
        shares = f"{self.control_share:g} and {self.holdout_share:g}"
        wanted = "above 0 with rollback, which compares their traffic"
        _require(compared or not self.rollback, "control_share and holdout_share", shares, wanted)


@dataclass(frozen=True)
class SolverConfig(_Settings):
    """Settings of an algorithm and its parts.

    An algorithm ignores the settings of parts that it does not have, so that one file serves several algorithms, except
    those whose absence would silently change the samples or the search.

    Attributes:
        type: The algorithm.
        optimizer: Settings of the optimizer, for BASIC_ES, ARS and PGPE.
        sampling: Settings of the perturbation.
        update: Settings of the use of rewards.
        adaptive_std: Settings of PGPE and SNES.
        cem: Settings of CEM.
        guard: Settings of the guard.

    Raises:
        ConfigError: The algorithm does not support the kind of sampling, bounds, whole numbers, a schedule of std,
            `stale: IMPORTANCE` or `max_update_ratio`.
    """

    type: SolverKind = SolverKind.BASIC_ES
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    adaptive_std: AdaptiveStdConfig = field(default_factory=AdaptiveStdConfig)
    cem: CemConfig = field(default_factory=CemConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.sampling.type
        if kind is not SamplingKind.GAUSSIAN_SAMPLING and self.type not in _SAMPLED_BY[kind]:
            wanted = " and ".join(solver.name for solver in _SAMPLED_BY[kind])
            raise ConfigError(f"{kind.name} is for {wanted}; {self.type.name} needs GAUSSIAN_SAMPLING")
        if self.update.stale is StaleKind.IMPORTANCE and self.type is not SolverKind.BASIC_ES:
            raise ConfigError(f"stale: IMPORTANCE is for BASIC_ES, not for {self.type.name}")
        if self.sampling.gaussian_sampling.schedule.type is not ScheduleKind.CONSTANT:
            if self.type not in {SolverKind.BASIC_ES, SolverKind.ARS}:
                raise ConfigError(f"a schedule of std is for BASIC_ES and ARS; {self.type.name} adapts std itself")
            if self.update.stale is StaleKind.IMPORTANCE:
                raise ConfigError("stale: IMPORTANCE needs samples of one std: remove the schedule of std")
        for name, solvers in _CMA_ONLY.items():
            if getattr(self.sampling.cma_sampling, name) and self.type not in solvers:
                wanted = ", ".join(solver.name for solver in solvers)
                raise ConfigError(f"{name} is for {wanted}; {self.type.name} would ignore it")
        if self.type is SolverKind.GA and self.guard.max_update_ratio:
            raise ConfigError("GA does not support max_update_ratio, because its models are not steps")


# GAUSSIAN_SAMPLING, being the default, is accepted everywhere.
_SAMPLED_BY = {
    SamplingKind.CMA_SAMPLING: (
        SolverKind.CMA_ES,
        SolverKind.SEP_CMA_ES,
        SolverKind.LM_MA_ES,
        SolverKind.CR_FM_NES,
    ),
    SamplingKind.GA_SAMPLING: (SolverKind.GA,),
}
_CMA_ONLY = {
    "lower": _SAMPLED_BY[SamplingKind.CMA_SAMPLING],
    "upper": _SAMPLED_BY[SamplingKind.CMA_SAMPLING],
    "integers": (SolverKind.CMA_ES, SolverKind.SEP_CMA_ES),
}


@dataclass(frozen=True)
class AsyncConfig(_Settings):
    """Place and number of the models of asynchronous updates.

    Attributes:
        model_warehouse: Directory with one subdirectory for each model.
        model_md5: Not used. It is accepted because files of the original EvoKit have it.
        max_to_keep: Number of models to keep; 1 or more.
        model_iter_id: Number of the initial model; 0 or more.
    """

    model_warehouse: str = "./model_warehouse"
    model_md5: tuple[str, ...] = ()
    max_to_keep: int = 5
    model_iter_id: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.max_to_keep >= 1, "max_to_keep", self.max_to_keep, "1 or more")
        _require(0 <= self.model_iter_id < 2**31, "model_iter_id", self.model_iter_id, "from 0 to 2**31 - 1")


@dataclass(frozen=True)
class Config(_Settings):
    """The settings of a search.

    Attributes:
        solver: Settings of algorithm, optimizer, sampling and update.
        async_es: Settings of asynchronous updates.
        keys: The source of the keys of samples.
        worker: Number of this process with `keys: COUNTER`; 0 to 2**31 - 1.

    Raises:
        ConfigError: A value is out of its range; the constructor of each part raises it.
    """

    solver: SolverConfig = field(default_factory=SolverConfig)
    async_es: AsyncConfig = field(default_factory=AsyncConfig)
    keys: KeyKind = KeyKind.SECRETS
    worker: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 <= self.worker < 2**31, "worker", self.worker, "from 0 to 2**31 - 1")

    @classmethod
    def load(
        cls, source: Union["Config", Mapping[str, Any], str, "PathLike[str]"], solver: SolverKind = SolverKind.BASIC_ES
    ) -> "Config":
        """Return settings from a file, a dictionary or another `Config`.

        Args:
            source: A path that ends in `.prototxt`, `.toml` or `.json`; a nested dictionary; or a `Config`.
            solver: The algorithm if a file or a dictionary names none.

        Raises:
            ConfigError: The file cannot be read, or a field is unknown (the message has its line and the nearest name),
                repeated, of another type, or out of its range.
        """
        return load_settings(cls, source, {("solver", "type"): solver.name})

    def to_prototxt(self) -> str:
        """Return all settings in the nested form; `load` of a file with this text returns an equal `Config`."""
        return to_prototxt(self)


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {wanted}, not {value}")
