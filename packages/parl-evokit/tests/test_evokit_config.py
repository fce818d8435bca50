"""Both prototxt dialects, the PARL 1.x manual's own text, TOML, JSON and dictionaries give the same typed settings."""

import contextlib
import dataclasses
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_evokit import CMAES
from parl_evokit._config_reader import Block, Field, Quoted, Word, _build, _nested, parse_prototxt, quote
from parl_evokit.config import (
    AdamConfig,
    AsyncConfig,
    CmaConfig,
    Config,
    GaussianConfig,
    KeyKind,
    MomentumConfig,
    OptimizerConfig,
    OptimizerKind,
    SamplingConfig,
    ShapingKind,
    SolverConfig,
    SolverKind,
    UpdateConfig,
)
from parl_evokit.errors import ConfigError

# The configuration of the PARL 1.x manual, comments included.
DOCUMENTED = """
solver {
  type: BASIC_ES
  optimizer { // 线下Adam更新
    type: ADAM
    base_lr: 0.05
    adam {
      beta1: 0.9
      beta2: 0.999
      epsilon: 1e-08
    }
  }
  sampling { // 线上高斯采样
    type: GAUSSIAN_SAMPLING
    gaussian_sampling {
      std: 0.5
      cached: true
      seed: 1024
      cache_size : 100000
    }
  }
}
"""
DOCUMENTED_CONFIG = Config(
    solver=SolverConfig(
        optimizer=OptimizerConfig(OptimizerKind.ADAM, 0.05, adam=AdamConfig(0.9, 0.999, 1e-8)),
        sampling=SamplingConfig(gaussian_sampling=GaussianConfig(0.5, True, 1024, 100_000)),
    )
)
# The flat form of the original's public code.
FLAT = """
# DeepES config
seed: 1024
gaussian_sampling { std: 0.5 cached: true cache_size: 100000 }
optimizer { type: "Adam", base_lr: 0.05; momentum: 0.8 beta1: 0.9 beta2: 0.999 epsilon: 1e-8 }
async_es { model_warehouse: "./models" model_md5: "aa" model_md5: "bb" max_to_keep: 3 model_iter_id: 4 }
"""
FLAT_CONFIG = Config(
    solver=dataclasses.replace(
        DOCUMENTED_CONFIG.solver,
        optimizer=dataclasses.replace(DOCUMENTED_CONFIG.solver.optimizer, momentum=MomentumConfig(0.8)),
    ),
    async_es=AsyncConfig("./models", ("aa", "bb"), 3, 4),
)


def load(tmp_path: Path, text: str, suffix: str = ".prototxt") -> Config:
    path = tmp_path / f"config{suffix}"
    path.write_text(text, encoding="utf-8")
    return Config.load(path)


def test_the_manuals_configuration_reads_as_written(tmp_path: Path) -> None:
    assert load(tmp_path, DOCUMENTED) == DOCUMENTED_CONFIG


def test_the_flat_form_reads_into_the_same_places(tmp_path: Path) -> None:
    assert load(tmp_path, FLAT) == FLAT_CONFIG


def test_an_empty_configuration_is_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "  # nothing\n") == Config() == Config.load({})
    assert Config().solver.sampling.gaussian_sampling == GaussianConfig(1.0, False, 18, 100_000, True)
    assert Config().solver.optimizer.type is OptimizerKind.SGD


def test_toml_json_and_dictionaries_read_the_same_tree(tmp_path: Path) -> None:
    tree = {
        "solver": {
            "type": "basic_es",
            "optimizer": {"type": OptimizerKind.ADAM.name, "base_lr": 0.05},
            "sampling": {"gaussian_sampling": {"std": 0.5, "cached": True, "seed": 1024}},
        }
    }
    toml = (
        "[solver.optimizer]\ntype = 'ADAM'\nbase_lr = 0.05\n"
        "[solver.sampling.gaussian_sampling]\nstd = 0.5\ncached = true\nseed = 1024\n"
    )
    assert Config.load(tree) == DOCUMENTED_CONFIG
    assert load(tmp_path, json.dumps(tree), ".json") == DOCUMENTED_CONFIG
    assert load(tmp_path, toml, ".toml") == DOCUMENTED_CONFIG
    assert Config.load(DOCUMENTED_CONFIG) is DOCUMENTED_CONFIG
    assert Config.load({"async_es": {"model_md5": ["a", "b"]}}).async_es.model_md5 == ("a", "b")


@pytest.mark.parametrize("config", [Config(), DOCUMENTED_CONFIG, FLAT_CONFIG])
def test_written_settings_read_back_equal(tmp_path: Path, config: Config) -> None:
    assert load(tmp_path, config.to_prototxt()) == config


@given(
    lr=st.floats(1e-30, 1e30),
    seed=st.integers(0, 2**64 - 1),
    shaping=st.sampled_from(ShapingKind),
    keys=st.sampled_from(KeyKind),
    warehouse=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_settings_survive_their_text(
    lr: float, seed: int, shaping: ShapingKind, keys: KeyKind, warehouse: str
) -> None:
    config = Config(
        SolverConfig(
            optimizer=OptimizerConfig(base_lr=lr),
            sampling=SamplingConfig(gaussian_sampling=GaussianConfig(seed=seed)),
            update=UpdateConfig(shaping),
        ),
        AsyncConfig(warehouse),
        keys,
    )
    tree = parse_prototxt(config.to_prototxt())
    names = [field.name for field in tree.fields]
    assert names == ["solver", "async_es", "keys", "worker"]
    assert _build(Config, _nested(tree), "the configuration") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("solver {\n  optimiser { }\n}", r"line 2: solver has no field optimiser; did you mean optimizer\?"),
        ("solver { type: BASIC_ES\n\n sampling { gaussian_sampling { sdt: 1 } } }", "line 3: .* did you mean std"),
        ("whatever: 1", "the configuration has no field whatever, only solver, async_es"),
        (
            "solver { type: CMAES }",
            "line 1: type must be one of BASIC_ES, CMA_ES, SEP_CMA_ES, GA, PGPE, SNES, ARS, CEM, LM_MA_ES, CR_FM_NES, "
            "not CMAES",
        ),
        ("solver {\n optimizer { base_lr: fast } }", "line 2: base_lr must be of type float, not fast"),
        ("solver { optimizer { base_lr: '0.1' } }", "base_lr must be of type float"),
        ("seed: 1.5", "seed must be of type int, not 1.5"),
        ("seed: 1\nseed: 2", "line 2: seed is given twice"),
        ("seed: 1\nsolver { sampling { gaussian_sampling { seed: 2 } } }", "line 2: seed is given twice"),
        ("seed { }", "seed must be one value"),
        ("solver: 3", "solver must be a block of settings, not 3"),
        ("solver { type BASIC_ES }", "line 1: after type a colon or a block is expected, not BASIC_ES"),
        ("solver {\n type:\n}", "line 3: type has no value: } follows"),
        ("solver {\n", "line 2: a name or } is expected, not the end of the text"),
        ("solver { } }", "line 1: a name or the end of the text is expected, not }"),
        ("seed: 1 @", "line 1: '@' does not belong here"),
        ("gaussian_sampling { cached: maybe }", "cached must be of type bool, not maybe"),
        ("gaussian_sampling { std: 0 }", r"std must be from 1e-30 to 1e\+37, not 0.0"),
        ("gaussian_sampling { std: 1e300 }", r"std must be from 1e-30 to 1e\+37, not 1e\+300"),  # infinite noise
        ("gaussian_sampling { std: 1e-300 }", r"std must be from 1e-30 to 1e\+37, not 1e-300"),  # no noise
        ("gaussian_sampling { cache_size: 3 }", r"cache_size must be from 64 to 2\*\*31, not 3"),
        ("optimizer { base_lr: nan }", "base_lr must be above 0, not nan"),
        ("optimizer { base_lr: 1_0 }", "base_lr must be of type float"),
        ("async_es { model_warehouse: here }", "model_warehouse must be of type str, not here"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_not_there_or_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load(tmp_path / "missing.prototxt")
    with pytest.raises(ConfigError, match="must end in"):
        Config.load("config.yaml")
    with pytest.raises(ConfigError, match="Expecting"):
        load(tmp_path, "{", ".json")
    with pytest.raises(ConfigError, match="an object is expected, not list"):
        load(tmp_path, "[]", ".json")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load(tmp_path, "= 3", ".toml")
    with pytest.raises(ConfigError, match="std cannot be a NoneType"):
        Config.load({"gaussian_sampling": {"std": None}})


@pytest.mark.parametrize(
    ("text", "value"), [("1f", 1.0), (".5", 0.5), ("+2.", 2.0), ("0x10", None), ("1e-3", 1e-3), ("7", 7.0)]
)
def test_numbers_are_written_as_protobuf_allows(text: str, value: float | None) -> None:
    source = {"optimizer": {"base_lr": 1}}
    assert Config.load(source).solver.optimizer.base_lr == 1.0
    tree = parse_prototxt(f"optimizer {{ base_lr: {text} }}")
    if value is None:
        with pytest.raises(ConfigError):
            _build(Config, _nested(tree), "")
    else:
        assert _build(Config, _nested(tree), "").solver.optimizer.base_lr == value


def test_whole_numbers_may_be_decimal_octal_or_hexadecimal(tmp_path: Path) -> None:
    for text in ("26", "0x1A", "032"):
        assert load(tmp_path, f"seed: {text}").solver.sampling.gaussian_sampling.seed == 26


def test_a_number_may_have_hundreds_of_digits(tmp_path: Path) -> None:
    long = 3 * 10**150
    (tmp_path / "c.json").write_text(json.dumps({"solver": {"update": {"weight_decay": long}}}), encoding="utf-8")
    for source in (tmp_path / "c.json", {"solver": {"update": {"weight_decay": long}}}):
        assert Config.load(source).solver.update.weight_decay == 3e150


def test_json_with_a_repeated_name_reads_as_prototxt_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="type is given twice in solver"):
        load(tmp_path, '{"solver": {"type": "ARS", "type": "GA"}}', ".json")
    twice = '{"solver": {"update": {"max_age": 3}}, "solver": {"type": "GA"}}'
    assert load(tmp_path, twice, ".json") == load(tmp_path, "solver { update { max_age: 3 } } solver { type: GA }")


@pytest.mark.parametrize("default", [1e39, -1e39, float("nan"), float("inf")])
def test_the_default_of_missing_rewards_is_one_that_counts(default: float) -> None:
    with pytest.raises(ConfigError, match="default_reward must be a finite float32 number"):
        UpdateConfig(default_reward=default)
    assert UpdateConfig(default_reward=3.4028235e38).default_reward == 3.4028235e38


def test_blocks_strings_lists_and_separators_read_as_in_protobuf() -> None:
    text = 'a: <b: \'x\' "y">, c: [1, 2]; d { } e: "q\\"\\n\\x41\\101"'
    assert parse_prototxt(text) == Block(
        (
            Field("a", Block((Field("b", Quoted("xy"), 1),)), 1),
            Field("c", Word("1"), 1),
            Field("c", Word("2"), 1),
            Field("d", Block(()), 1),
            Field("e", Quoted('q"\nAA'), 1),
        )
    )


@given(st.text(string.printable))
def test_quoted_text_reads_back(text: str) -> None:
    assert parse_prototxt(f"name: {quote(text)}") == Block((Field("name", Quoted(text), 1),))


@given(st.text("solver{}<>:,;[]\"'# \n/\\ab1."))
def test_no_text_breaks_the_reader_but_by_its_own_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_prototxt(text), Block)


def test_numpy_scalars_are_settings_and_are_written_as_plain_numbers(tmp_path: Path) -> None:
    noise = {"std": np.float64(0.1), "seed": np.int64(7), "cached": np.bool_(True)}
    from_dictionary = Config.load({"solver": {"sampling": {"gaussian_sampling": noise}}})
    typed: Any = noise
    config = Config(SolverConfig(sampling=SamplingConfig(gaussian_sampling=GaussianConfig(**typed))))
    assert config.to_prototxt() == from_dictionary.to_prototxt()
    assert load(tmp_path, config.to_prototxt()) == config == from_dictionary
    halves = Config.load({"solver": {"sampling": {"gaussian_sampling": {"std": np.float32(0.125)}}}})
    assert halves.solver.sampling.gaussian_sampling.std == 0.125


def test_settings_of_numpy_scalars_are_plain_numbers() -> None:
    values: Any = {"std": np.float32(0.1), "seed": np.int64(7), "cached": np.bool_(True)}
    noise = GaussianConfig(**values)
    assert [type(value) for value in (noise.std, noise.seed, noise.cached)] == [float, int, bool]
    sides: Any = {"lower": (np.float32(-0.5), 0.0), "integers": (np.int64(1),)}
    box = CmaConfig(**sides)
    assert [type(value) for value in box.lower + box.integers] == [float, float, int]
    worker: Any = np.uint8(3)
    assert type(Config(worker=worker).worker) is int


def test_a_search_with_a_std_of_float32_resumes_exactly_and_saves_float64() -> None:
    std: Any = np.float32(0.3)
    sampling = SamplingConfig(gaussian_sampling=GaussianConfig(std=std))
    config = Config(SolverConfig(type=SolverKind.CMA_ES, sampling=sampling), keys=KeyKind.COUNTER)
    first = CMAES(np.ones(6), config)

    def step(es: CMAES) -> str:
        infos = es.ask(es.population)
        return es.tell(infos, [-float(x @ x) for x in es.candidates(infos)]).parameters_sha256

    assert first.state()["sigma"].dtype == np.float64
    for _ in range(5):
        step(first)
    second = CMAES(first.mean, config)
    second.load_state(first.state())
    assert [step(first) for _ in range(5)] == [step(second) for _ in range(5)]
