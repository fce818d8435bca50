"""Recipes are values that JSON holds, and the same for everybody who asks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parl_core.errors import HyperparameterError
from parl_core.replay import Prioritized
from parl_core.schedules import constant, linear, piecewise, read_schedule, stages_of, stretched
from parl_core.training._recipe_run import RecipeRun, preset
from parl_core.training.off_policy import OffPolicySettings
from parl_core.training.offline import OfflineSettings
from parl_core.training.on_policy import OnPolicySettings
from parl_core.training.recipes import (
    NETWORKS,
    RECIPES,
    Recipe,
    SelfPlaySettings,
    find_recipe,
    plain,
    read_plain,
)
from parl_core.training.results import REPORT_SEEDS, report_seeds
from parl_core.training.trained import StandardEnv


@pytest.mark.parametrize("key", RECIPES, ids=" ".join)
def test_a_recipe_is_read_back_as_it_was_written(key: tuple[str, str]) -> None:
    recipe = RECIPES[key]
    written = json.loads(json.dumps(recipe.as_json()))
    again = Recipe.from_json(written)
    assert again == recipe
    assert again.as_json() == recipe.as_json()
    assert recipe.source
    assert recipe.network or key[0] in NETWORKS
    assert recipe.with_steps(123).steps == 123


def test_an_environment_has_its_own_recipe_or_that_of_all_or_of_its_kind() -> None:
    def never() -> str:
        raise AssertionError

    assert find_recipe("DQN", "CartPole-v1", never) is RECIPES["DQN", "CartPole-v1"]
    assert find_recipe("DQN", "CartPole", never) is RECIPES["DQN", "CartPole-v1"]
    assert find_recipe("SAC", "Hopper-v5", never) is RECIPES["SAC", "*"]
    assert find_recipe("PPO", "Hopper-v5", lambda: "continuous") is RECIPES["PPO", "continuous"]
    with pytest.raises(
        HyperparameterError, match=r"DQN learns discrete actions, and those of Hopper-v5 are continuous"
    ):
        find_recipe("DQN", "Hopper-v5", lambda: "continuous")
    with pytest.raises(HyperparameterError, match=r"no recipe of QRDQN for ALE/Pong-v5 \(atari\); there are some for"):
        find_recipe("QRDQN", "ALE/Pong-v5", lambda: "atari")


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "A3C", "IMPALA", "PolicyGradient"])
def test_algorithms_for_choices_and_numbers_have_a_recipe_of_both_kinds(algorithm: str, kind: str) -> None:
    assert find_recipe(algorithm, "Unknown-v0", lambda: kind).source


def test_a_return_that_ends_training_is_that_of_one_environment() -> None:
    assert find_recipe("A3C", "CartPole-v1").goal == 475.0
    assert {key for (_, key), recipe in RECIPES.items() if recipe.goal is not None} & {
        "*",
        "discrete",
        "continuous",
    } == set()


def test_hindsight_is_preset_where_single_steps_are_drawn_uniformly() -> None:
    found = {name: preset(name, "BitFlipping-v0", "parl_core.env.goals").loop for name in ("DDQN", "C51", "Rainbow")}
    assert {name: loop.hindsight for name, loop in found.items()} == {"DDQN": 0.8, "C51": 0.8, "Rainbow": None}


def test_a_recipe_with_the_numbers_of_another_one_deviates_as_that_does() -> None:
    assert RECIPES["IPPO", "*"].deviations == RECIPES["MAPPO", "*"].deviations


def test_recipes_of_ppo_clip_values_only_where_rewards_are_scaled() -> None:
    clip = {
        name: recipe
        for (algorithm, name), recipe in RECIPES.items()
        if algorithm == "PPO" and recipe.algorithm.get("use_clipped_value_loss", True)
    }
    assert {name for name, recipe in clip.items() if not recipe.normalize} == {
        "atari",
        "ALE/Pong-v5",
        "ALE/Breakout-v5",
    }


@pytest.mark.parametrize(
    ("observation", "normalized"),
    [
        (spaces.Box(-1.0, 1.0, (3,), np.float32), True),
        (spaces.Box(-1.0, 1.0, (3, 2), np.float32), True),
        (spaces.Box(0, 255, (12, 12, 3), np.uint8), False),
        (spaces.Dict(x=spaces.Box(-1.0, 1.0, (3,)), camera=spaces.Box(0, 255, (12, 12, 3), np.uint8)), False),
    ],
)
def test_a_recipe_that_normalises_leaves_images_and_dictionaries_as_they_are(
    observation: spaces.Space[Any], normalized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandardEnv, "_spaces", (observation, spaces.Box(-1.0, 1.0, (2,))))
    asked = RecipeRun("PPO", "Anything-v0", "torch")
    assert asked.recipe.normalize
    assert asked.trained().normalized == normalized


def test_another_budget_stretches_learning_rates_and_leaves_the_rest() -> None:
    loop = OffPolicySettings(
        total_steps=1_000,
        exploration={"epsilon": linear(1.0, 0.1, 500)},
        rates={"learning_rate": linear(0.1, 0.0, 1_000)},
    )
    longer = Recipe(loop, {"lr": linear(0.2, 0.0, 100), "gamma": 0.9}).with_steps(3_000)
    assert longer.loop.rates["learning_rate"] == linear(0.1, 0.0, 3_000)
    assert longer.loop.exploration == loop.exploration
    assert longer.algorithm == {"lr": linear(0.2, 0.0, 300.0), "gamma": 0.9}


def test_another_budget_stretches_schedules_of_on_policy_loops_and_the_cosine_of_iql() -> None:
    loop = OnPolicySettings(total_steps=1_000, lr=linear(0.1, 0.0, 1_000), clip=0.2)
    longer = Recipe(loop).with_steps(3_000).loop
    assert (longer.lr, longer.clip) == (linear(0.1, 0.0, 3_000), 0.2)
    logged = Recipe(OfflineSettings(updates=100), {"max_steps": 100, "gamma": 0.9}).with_steps(300)
    assert logged.algorithm == {"max_steps": 300, "gamma": 0.9}


@pytest.mark.parametrize("given", [{}, {"lr": "linear(1e-3, 0)"}])
@pytest.mark.parametrize(("name", "env"), [("DQN", "CartPole-v1"), ("PPO", "CartPole-v1"), ("BC", "CartPole-v1")])
def test_a_run_resumed_with_more_steps_learns_at_stretched_rates(name: str, env: str, given: Any) -> None:
    asked = RecipeRun(name, env, "torch", steps=20_000, given=given)
    longer = asked.extended(40_000)
    assert (longer.total_steps, longer.recipe.steps) == (40_000, 40_000)
    assert longer.recipe == asked.recipe.with_steps(40_000)
    assert longer.trained().arguments == longer.recipe.algorithm


def test_a_description_of_a_longer_run_is_read_again(tmp_path: Path) -> None:
    longer = RecipeRun("DQN", "CartPole-v1", "torch", steps=20_000).extended(40_000)
    longer.write(tmp_path)
    assert RecipeRun.read(tmp_path).recipe == longer.recipe
    assert longer.recipe.loop.rates["learning_rate"](20_000) > 0.0


@pytest.mark.parametrize(
    "schedule",
    [constant(0.5), linear(1.0, 0.1, 100), linear(1.0, 0.1, 100, begin=20), piecewise([(0, 1.0), (10, 0.5)])],
)
def test_a_schedule_is_written_as_its_stages(schedule: Any) -> None:
    written = json.loads(json.dumps(stages_of(schedule)))
    again = read_schedule(written)
    assert [again(step) for step in range(0, 130, 5)] == [schedule(step) for step in range(0, 130, 5)]
    twice = stretched(schedule, 2.0)
    assert callable(twice)
    assert [twice(2 * step) for step in range(0, 130, 5)] == [schedule(step) for step in range(0, 130, 5)]


@pytest.mark.parametrize(
    "wrong", [{}, {"schedule": "cosine", "stages": []}, {"schedule": "linear", "stages": [[0, 1]]}]
)
def test_what_describes_no_schedule_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HyperparameterError, match="describes no schedule"):
        read_schedule(wrong)


def test_a_function_that_is_no_schedule_of_ours_cannot_be_written_down() -> None:
    with pytest.raises(HyperparameterError, match="cannot be written down as stages"):
        plain({"lr": lambda step: 0.1})


def test_settings_of_loops_and_priorities_are_read_back() -> None:
    loop = OffPolicySettings(prioritized=Prioritized(alpha=0.5), exploration={"noise": 0.1})
    assert read_plain(json.loads(json.dumps(plain(loop)))) == loop
    with pytest.raises(HyperparameterError, match="not the numbers of a recipe"):
        Recipe.from_json({"loop": {"class": "Nothing"}})


def test_report_seeds_begin_at_100_and_go_by_the_cost_of_a_run() -> None:
    assert report_seeds("torch", 1.0) == tuple(range(100, 110))
    assert report_seeds("paddle", 14.9) == tuple(range(100, 105))
    assert (len(report_seeds("torch", 15.0)), len(report_seeds("paddle", 119.0))) == (5, 2)
    assert (len(report_seeds("torch", 120.0)), len(report_seeds("paddle", 120.0))) == (3, 0)
    assert min(REPORT_SEEDS) == 100


def test_a_recipe_of_self_play_is_read_back_and_its_budget_is_a_number_of_generations() -> None:
    recipe = Recipe(SelfPlaySettings(10, OnPolicySettings(total_steps=64, n_steps=8)), source="a test")
    assert Recipe.from_json(json.loads(json.dumps(recipe.as_json()))) == recipe
    assert recipe.steps == 640
    assert [recipe.with_steps(steps).loop.generations for steps in (640, 200, 10)] == [10, 3, 1]


def test_self_play_has_at_least_one_generation() -> None:
    with pytest.raises(HyperparameterError, match="generations"):
        SelfPlaySettings(0, OnPolicySettings(total_steps=64))
