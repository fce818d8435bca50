"""RLlib's IMPALA (ray 2.60, its new API stack), with the same sizes; one torch thread in every process."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gymnasium
import numpy as np
import ray
import tasks
import torch
from rates import Rates
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

IMAGES = {
    "conv_filters": [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
    "conv_activation": "relu",
    "head_fcnet_hiddens": [512],
    "head_fcnet_activation": "relu",
    "vf_share_layers": True,
}
VECTORS = {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu", "vf_share_layers": True}


def make_env(_: Any, task: str) -> Any:
    """One environment; images with the channels last and in float32, because RLlib's networks take no bytes."""
    if not tasks.TASKS[task].images:
        return tasks.TASKS[task].env()
    space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
    env = (
        tasks.counted(tasks.Frames(channels_first=False))
        if task == "frames"
        else _channels_last(tasks.TASKS[task].env())
    )
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs.astype(np.float32) / 255.0, space)


def _channels_last(env: Any) -> Any:
    space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs.transpose(1, 2, 0), space)


def main(task: str, warm_up_s: float, seconds: float) -> None:
    """Run until the rates are measured."""
    torch.set_num_threads(1)
    folder = str(Path(__file__).resolve().parents[1])
    ray.init(
        num_cpus=tasks.N_ACTORS + 1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": folder}},
    )
    register_env(task, lambda config: make_env(config, task))
    config = (
        IMPALAConfig()
        .environment(task)
        .env_runners(
            num_env_runners=tasks.N_ACTORS, num_envs_per_env_runner=tasks.ENVS, rollout_fragment_length=tasks.STEPS
        )
        .training(
            train_batch_size_per_learner=tasks.BATCH,
            gamma=tasks.GAMMA,
            lr=tasks.LEARNING_RATE,
            entropy_coeff=tasks.ENTROPY,
            vf_loss_coeff=tasks.VALUE_LOSS,
            grad_clip=tasks.MAX_NORM,
        )
        .learners(num_learners=0)
        .rl_module(model_config=DefaultModelConfig(**(IMAGES if tasks.TASKS[task].images else VECTORS)))
        .reporting(min_time_s_per_iteration=1)
    )
    algorithm, rates = config.build_algo(), Rates(warm_up_s, seconds)
    while True:
        result = algorithm.train()
        learners = result.get("learners", {}).get("__all_modules__", {})  # none before the first update
        trained = int(learners.get("num_env_steps_trained_lifetime", 0))
        if trained and rates.update(trained):
            break
    rates.print()
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
