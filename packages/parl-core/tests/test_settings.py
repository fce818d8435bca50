"""Settings of recipes by name: what there is, how it is read, and what is refused."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from parl_core.errors import HyperparameterError
from parl_core.schedules import linear, piecewise
from parl_core.training._recipe_run import RecipeRun, preset
from parl_core.training.recipes import RECIPES
from parl_core.training.settings import (
    algorithm_named,
    as_text,
    contract_of,
    read_setting,
    settings_of,
    toml_lines,
    with_settings,
)


def changed(algorithm: str, env: str, **values: Any) -> Any:
    return with_settings(algorithm, preset(algorithm, env), values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("256", 256),
        ("true", True),
        ("Off", False),
        ("none", None),
        ("inf", float("inf")),
        ("256,128", (256, 128)),
        ("[64, 64]", [64, 64]),
        ("relu", "relu"),
        ("linear(1e-3, 0, 5000)", linear(1e-3, 0, 5000)),
        ("piecewise([(0, 1e-3), (10, 1e-4)])", piecewise([(0, 1e-3), (10, 1e-4)])),
    ],
)
def test_a_text_is_read_as_the_value_it_stands_for(text: str, value: Any) -> None:
    assert read_setting(text) == value
    assert read_setting(as_text(value)) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("key", sorted(RECIPES), ids=" ".join)
def test_every_listed_setting_takes_the_value_it_has(key: tuple[str, str]) -> None:
    algorithm, recipe = key[0], RECIPES[key]
    found = settings_of(algorithm, recipe)
    for one in found.values():
        assert one.type, one.name
        if one.value is not None and not one.name.startswith("prioritized"):
            assert one.checked(one.value) == one.value, one.name
            read = read_setting(as_text(one.value))
            assert one.checked(read) == one.value, one.name


@pytest.mark.parametrize(
    ("algorithm", "env", "expected"),
    [
        ("MAPPO", "two_step", {"clip": 0.2, "entropy_coef": 0.01, "lr": 7e-4}),
        ("COMA", "two_step", {"entropy_coef": 0.01}),
        ("PPO", "CartPole-v1", {"eps": 1e-5, "max_grad_norm": 0.5, "norm_adv": True}),
        ("A2C", "CartPole-v1", {"max_grad_norm": 40.0, "entropy_coef": 0.01}),
    ],
)
def test_what_a_preset_leaves_out_has_the_value_of_the_algorithm(
    algorithm: str, env: str, expected: dict[str, Any]
) -> None:
    recipe = preset(algorithm, env)
    if algorithm == "A2C":
        recipe = replace(recipe, loop=replace(recipe.loop, entropy_coef=None))
    found = settings_of(algorithm, recipe)
    assert {name: found[name].effective for name in expected} == expected
    given = with_settings(algorithm, recipe, {"entropy_coef": 0.5})
    assert settings_of(algorithm, given)["entropy_coef"].effective == 0.5


def test_a_setting_without_a_value_is_refused() -> None:
    for name in ("lr", "gamma", "network.hidden"):
        with pytest.raises(HyperparameterError, match=f"{name} takes .*; got nothing"):
            changed("TD3", "Pendulum-v1", **{name: ""})
    assert changed("TD3", "Pendulum-v1", **{"network.hidden": "()"}).sizes["hidden"] == ()


def test_a_setting_is_put_where_the_recipe_has_it() -> None:
    recipe = changed("PPO", "CartPole-v1", lr="3e-4", n_steps="64", norm_adv="false", num_envs="4")
    assert (recipe.loop.lr, recipe.loop.n_steps, recipe.num_envs) == (3e-4, 64, 4)
    assert recipe.algorithm["norm_adv"] is False
    network = with_settings("PPO", recipe, {"network.width": 32, "network.depth": "3", "activation": "relu"})
    assert network.sizes == {"hidden": (32, 32, 32), "activation": "relu"}


def test_what_a_loop_passes_to_every_update_is_the_learning_rate_that_counts() -> None:
    rates = changed("DQN", "CartPole-v1", lr=1e-3).loop.rates
    assert rates == {"learning_rate": 1e-3}
    assert changed("DQN", "MinAtar/Breakout-v1", learning_rate=1e-3).algorithm["lr"] == 1e-3
    assert changed("PPO", "Acrobot-v1", initial_lr=1e-3).loop.lr == 1e-3
    both = changed("SAC", "Pendulum-v1", lr="1e-4").algorithm
    assert (both["actor_lr"], both["critic_lr"]) == (1e-4, 1e-4)


def test_steps_of_an_impala_fragment_are_one_setting() -> None:
    recipe = changed("IMPALA", "CartPole-v1", n_steps=20)
    assert (recipe.loop.n_steps, recipe.algorithm["sample_batch_steps"]) == (20, 20)
    assert changed("IMPALA", "CartPole-v1", gamma=0.9).algorithm["gamma"] == 0.9


def test_prioritised_replay_is_switched_on_with_its_own_numbers() -> None:
    recipe = with_settings("DQN", preset("DQN", "Acrobot-v1"), {"prioritized.alpha": 0.5})
    assert recipe.loop.prioritized.alpha == 0.5
    assert with_settings("DQN", recipe, {"prioritized": "false"}).loop.prioritized is None


def test_a_part_that_is_switched_on_by_name_keeps_its_numbers_in_either_order() -> None:
    for values in (
        {"prioritized": "true", "prioritized.alpha": "0.5"},
        {"prioritized.alpha": "0.5", "prioritized": "true"},
    ):
        recipe = with_settings("DQN", preset("DQN", "Acrobot-v1"), values)
        assert recipe.loop.prioritized.alpha == 0.5
    for values in ({"novelty": "rnd", "novelty.coef": "0.5"}, {"novelty.coef": "0.5", "novelty": "rnd"}):
        recipe = with_settings("PPO", preset("PPO", "CartPole-v1"), values)
        assert recipe.novelty == {"coef": 0.5}
    assert with_settings("PPO", recipe, {"novelty": "none"}).novelty is None


def test_novelty_has_settings_of_its_own_and_none_without_it() -> None:
    recipe = with_settings("A2C", preset("A2C", "CartPole-v1"), {"novelty.hidden": "32"})
    assert recipe.novelty == {"hidden": (32,)}
    found = settings_of("A2C", recipe)
    assert (found["novelty"].value, found["novelty.hidden"].value, found["novelty.reward_coef"].value) == (
        "rnd",
        (32,),
        2.0,
    )
    assert with_settings("A2C", recipe, {"lr": "1e-3"}).novelty == recipe.novelty  # not that of RND
    assert "novelty" not in settings_of("DQN", preset("DQN", "Acrobot-v1"))


def test_the_transformer_that_remembers_has_options_and_the_blocks_of_layers_keep_their_short_name() -> None:
    recipe = preset("PPO", "CartPole-v1")
    assert settings_of("PPO", recipe)["network.memory_options.reach"].value is None
    changed = with_settings("PPO", recipe, {"memory": "transformer", "reach": "32", "blocks": "simba"})
    assert changed.sizes["memory_options"] == {"reach": 32}
    assert changed.sizes["blocks"] == "simba"
    listed = settings_of("PPO", changed)
    assert (listed["network.memory_options.reach"].value, listed["network.memory_options.heads"].value) == (32, 2)


@pytest.mark.parametrize(
    ("algorithm", "env"), [("SAC", "Pendulum-v1"), ("C51", "CartPole-v1"), ("OfflineQ", "CartPole-v1")]
)
def test_algorithms_that_learn_from_single_steps_list_no_settings_of_memories(algorithm: str, env: str) -> None:
    found = settings_of(algorithm, preset(algorithm, env))
    assert not [name for name in found if "network.memory" in name or name in ("burn_in", "sequence_length")]
    for name in ("memory", "network.memory"):
        with pytest.raises(HyperparameterError, match=f"networks of {algorithm} have no memory; .*ppo.* learn with"):
            changed(algorithm, env, **{name: "gru"})
    assert {"burn_in", "sequence_length"} <= settings_of("DQN", preset("DQN", "CartPole-v1")).keys()


@pytest.mark.parametrize(
    ("algorithm", "env", "names"),
    [
        ("A2C", "CartPole-v1", ("epochs", "minibatch_size", "clip", "target_kl")),
        ("COMA", "climbing", ("clip", "epochs", "minibatch_size", "target_kl", "normalize")),
        ("IMPALA", "CartPole-v1", ("epochs", "gae_lambda")),
        ("MADDPG", "penalty", ("n_step", "prioritized", "normalize", "hindsight")),
        ("MAPPO", "climbing", ("normalize",)),
        ("QMIX", "two_step", ("n_step", "prioritized", "prioritized.alpha", "normalize", "hindsight")),
    ],
)
def test_settings_that_an_algorithm_has_no_use_for_are_neither_listed_nor_taken(
    algorithm: str, env: str, names: tuple[str, ...]
) -> None:
    assert not set(names) & settings_of(algorithm, preset(algorithm, env)).keys()
    for name in names:
        with pytest.raises(HyperparameterError, match=f"{algorithm} has no use for {name}: leave it out"):
            changed(algorithm, env, **{name: "1"})


def test_the_weight_of_the_entropy_is_not_described_as_the_learning_rate() -> None:
    listed = settings_of("A3C", preset("A3C", "CartPole-v1"))
    assert "entropy bonus" in listed["entropy_coef"].text
    assert "learning rate" in listed["lr"].text


def test_the_weight_of_overestimates_is_listed_and_checked() -> None:
    listed = settings_of("QMIX", preset("QMIX", "climbing"))["overestimate_weight"]
    assert listed.value == 0.02
    assert "above the target" in listed.text
    assert changed("VDN", "climbing", overestimate_weight="0.1").algorithm["overestimate_weight"] == 0.1


def test_algorithms_that_are_not_compiled_say_so() -> None:
    with pytest.raises(HyperparameterError, match="updates of QMIX are not compiled: leave out --compile"):
        changed("QMIX", "two_step", compile="true")


def test_the_learning_rate_of_coma_is_that_of_both_parts() -> None:
    arguments = changed("COMA", "climbing", lr="1e-4").algorithm
    assert (arguments["actor_lr"], arguments["critic_lr"]) == (1e-4, 1e-4)


def test_width_and_depth_are_listed_and_found_by_their_short_names() -> None:
    assert {"network.width", "network.depth"} <= settings_of("PPO", preset("PPO", "CartPole-v1")).keys()
    assert changed("PPO", "CartPole-v1", width="32", depth="3").sizes["hidden"] == (32, 32, 32)


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ({"hidden": "16,8,4", "depth": "2"}, (16, 16)),
        ({"hidden": "16,8,4", "width": "32"}, (32, 32, 32)),
        ({"depth": "3", "hidden": "16", "width": "8"}, (8,)),
    ],
)
def test_width_and_depth_change_the_sizes_that_were_set_before(values: dict[str, str], sizes: tuple[int, ...]) -> None:
    """A file has the sizes, for instance, and the command line another depth."""
    assert changed("PPO", "CartPole-v1", **values).sizes["hidden"] == sizes


def test_width_and_depth_are_not_listed_where_the_layers_have_one_size() -> None:
    listed = settings_of("DecisionTransformer", preset("DecisionTransformer", "CartPole-v1"))
    assert "network.hidden" in listed
    assert not {"network.width", "network.depth"} & listed.keys()
    with pytest.raises(HyperparameterError, match=r"no setting 'network\.width'"):
        changed("DecisionTransformer", "CartPole-v1", **{"network.width": "32"})


@pytest.mark.parametrize(
    ("algorithm", "values", "message"),
    [
        ("PPO", {"network.memory_size": "16"}, "network.memory_size has no effect without network.memory"),
        ("MAPPO", {"network.hidden": "7,7,7", "network.memory": "gru"}, "have no effect with network.memory=gru"),
        ("QMIX", {"network.width": "32"}, "have no effect with network.memory=gru: set network.memory_size"),
    ],
)
def test_sizes_of_layers_that_the_network_does_not_have_are_refused(
    algorithm: str, values: dict[str, str], message: str
) -> None:
    env = "CartPole-v1" if algorithm == "PPO" else "cued_two_step"
    with pytest.raises(HyperparameterError, match=message):
        changed(algorithm, env, **values)
    assert changed("QMIX", env, **{"network.memory": "none", "network.width": "32"}).sizes["hidden"] == (32, 32)
    assert changed("PPO", env, **{"network.memory": "gru", "network.width": "32"}).sizes["hidden"] == (32, 32)


def test_a_straight_line_without_its_length_goes_over_the_run() -> None:
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=5_000, given={"lr": "linear(1e-3, 0)"})
    assert asked.recipe.loop.lr == linear(1e-3, 0.0, 5_000)
    of_updates = changed("SAC", "Pendulum-v1", actor_lr="linear(1e-3, 0)").algorithm["actor_lr"]
    assert of_updates == linear(1e-3, 0.0, 19_000)


@pytest.mark.parametrize(
    ("algorithm", "values", "updates"),
    [
        ("SAC", {"gradient_steps": "4"}, 76_000),
        ("SAC", {"train_every": "2", "learning_starts": "2000"}, 9_000),
        ("ApeX", {}, 249_750),
        ("ApeX", {"train_every": "1"}, 999_000),
    ],
)
def test_the_length_of_a_line_over_updates_follows_from_the_other_settings(
    algorithm: str, values: dict[str, str], updates: int
) -> None:
    env = "Pendulum-v1" if algorithm == "SAC" else "CliffWalking-v1"
    for given in ({"lr": "linear(1e-3, 0)", **values}, {**values, "lr": "linear(1e-3, 0)"}):
        recipe = changed(algorithm, env, **given)
        assert settings_of(algorithm, recipe)["lr"].value == linear(1e-3, 0.0, updates)


def test_a_later_setting_replaces_a_line_over_the_run() -> None:
    given = {"lr": "linear(1e-3, 0)", "critic_lr": "2e-4", "gradient_steps": "2"}
    algorithm = changed("SAC", "Pendulum-v1", **given).algorithm
    assert (algorithm["actor_lr"], algorithm["critic_lr"]) == (linear(1e-3, 0.0, 38_000), 2e-4)


def test_a_line_of_noveltys_rate_is_over_its_updates() -> None:
    given = {"novelty.lr": "linear(1e-3, 0)", "n_steps": "100", "num_envs": "2", "novelty.minibatch_size": "150"}
    recipe = changed("PPO", "CartPole-v1", **given)
    assert recipe.steps == 100_000
    assert recipe.novelty["lr"] == linear(1e-3, 0.0, 500 * 4 * 2)


def test_a_line_of_comas_rates_is_over_its_updates() -> None:
    given = {"lr": "linear(1e-3, 0)", "critic_lr": "2e-3", "n_steps": "100", "num_envs": "2"}
    recipe = changed("COMA", "two_step", **given)
    assert recipe.algorithm["actor_lr"] == linear(1e-3, 0.0, recipe.steps // 200)
    assert recipe.algorithm["critic_lr"] == 2e-3


@pytest.mark.parametrize(("algorithm", "name"), [("COMA", "grad_norm_clip"), ("MADDPG", "max_grad_norm")])
def test_limits_of_teams_are_lifted_by_infinity_and_by_none(algorithm: str, name: str) -> None:
    assert changed(algorithm, "two_step", **{name: "inf"}).algorithm[name] == float("inf")
    assert changed(algorithm, "two_step", **{name: "none"}).algorithm[name] is None


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "IMPALA"])
def test_a_limit_is_lifted_by_infinity_and_none_is_refused(algorithm: str) -> None:
    recipe = changed(algorithm, "CartPole-v1", max_grad_norm="inf")
    assert recipe.algorithm["max_grad_norm"] == float("inf")
    with pytest.raises(HyperparameterError, match="max_grad_norm takes number; got none"):
        changed(algorithm, "CartPole-v1", max_grad_norm="none")
    assert changed("DQN", "CartPole-v1", max_grad_norm="none").algorithm["max_grad_norm"] is None
    assert tomllib.loads("\n".join(toml_lines({"max_grad_norm": float("inf"), "lr": 1e-05}))) == {
        "max_grad_norm": float("inf"),
        "lr": 1e-05,
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lrr": "1"}, r"no setting 'lrr'; did you mean lr\?"),
        ({"epoch": "1"}, r"did you mean epochs\?"),
        ({"network.hiden": "1"}, r"did you mean network\.hidden\?"),
        ({"hiden": "1"}, r"did you mean network\.hidden\?"),
        ({"zzz": "1"}, r"there are bootstrap_truncated, clip, compile, "),
        ({"lr": "fast"}, r"lr takes number or schedule, such as linear\(1e-3, 0\); got fast"),
        ({"n_steps": "1.5"}, r"n_steps takes whole number; got 1\.5"),
        ({"norm_adv": "3"}, r"norm_adv takes true or false; got 3"),
        ({"network.blocks": "resnet"}, r"network\.blocks takes mlp or simba; got resnet"),
        ({"network.width": "0"}, r"network\.width takes a whole number of at least 1"),
        ({"network.width": "linear(8, 1)"}, r"network\.width takes a whole number .*; got linear\(8\.0, 1\.0\)"),
        ({"lr": "linear(1e-3)"}, r"is not a schedule"),
        ({"gamma": "2"}, r"gamma must lie in"),
        ({"num_envs": "0"}, r"num_envs must be at least 1, got 0"),
        ({"evaluate_every": "0"}, r"evaluate_every must be at least 1, got 0"),
        ({"novelty": "icm"}, r"novelty takes rnd; got icm"),
        ({"novelty.koef": "1"}, r"no setting 'novelty\.koef'; did you mean novelty\.coef\?"),
        ({"novelty": "none", "novelty.coef": "1"}, r"novelty\.coef has no effect without novelty"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(values: dict[str, str], message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        changed("PPO", "CartPole-v1", **values)


def test_algorithms_are_found_however_they_are_written() -> None:
    known = ("PPO", "QRDQN", "DecisionTransformer")
    assert [algorithm_named(one, known) for one in ("ppo", "qr-dqn", "decision_transformer")] == list(known)
    with pytest.raises(HyperparameterError, match=r"no algorithm 'ppoo'; did you mean ppo\?"):
        algorithm_named("ppoo", known)
    with pytest.raises(HyperparameterError, match="there are decisiontransformer, ppo, qrdqn"):
        algorithm_named("zzzzz", known)
    with pytest.raises(HyperparameterError, match="no algorithm 'Nothing'"):
        contract_of("Nothing")


def test_a_message_proposes_only_the_algorithms_that_are_offered() -> None:
    known, offered = ("PPO", "RND", "QRDQN"), ("PPO", "QRDQN")
    assert algorithm_named("rnd", known, offered) == "RND"
    with pytest.raises(HyperparameterError, match=r"no algorithm 'zzzzz'; there are ppo, qrdqn$"):
        algorithm_named("zzzzz", known, offered)
    with pytest.raises(HyperparameterError, match=r"no algorithm 'rndd'; there are"):
        algorithm_named("rndd", known, offered)


@pytest.mark.parametrize(
    ("name", "here"),
    [("her", "hindsight=0.8"), ("ppo_lstm", "network.memory=lstm"), ("MaskablePPO", "action_mask"), ("ars", "evokit")],
)
def test_the_names_of_other_libraries_lead_to_what_is_here(name: str, here: str) -> None:
    with pytest.raises(HyperparameterError, match=rf"no algorithm '{name}'; here that is .*{here}"):
        algorithm_named(name, ("PPO", "SAC"))


def test_a_run_is_read_back_with_its_settings(tmp_path: Any) -> None:
    asked = RecipeRun(
        "PPO", "CartPole-v1", "torch", given={"lr": "linear(1e-3, 0)", "network.width": 16, "decay": False}
    )
    asked.write(tmp_path)
    again = RecipeRun.read(tmp_path)
    assert again == asked
    assert again.recipe == asked.recipe
