"""BenchMARL in `speed.py`: its experiments' own collector, memory and update, with networks of the same sizes."""

import tempfile
from typing import Any

import torch
from benchmarl.algorithms import MaddpgConfig, MappoConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models import MlpConfig
from serving import BATCH, HIDDEN, ROWS, STEPS, Run, serve
from torch import nn


def experiment_of(algorithm: Any, frames: int, batch: int, act: type[nn.Module]) -> Experiment:
    """Return an experiment after one collection, so that its memory has a batch."""
    config = ExperimentConfig.get_from_yaml()
    config.loggers, config.create_json, config.render, config.evaluation = [], False, False, False
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    config.prefer_continuous_actions = config.share_policy_params = False
    config.on_policy_collected_frames_per_batch = config.off_policy_collected_frames_per_batch = frames
    config.on_policy_n_envs_per_worker = config.off_policy_n_envs_per_worker = 5
    config.on_policy_minibatch_size = config.off_policy_train_batch_size = batch
    config.save_folder = tempfile.mkdtemp()
    config.max_n_frames, config.off_policy_init_random_frames = 10_000_000, 0
    model = MlpConfig(num_cells=[HIDDEN, HIDDEN], layer_class=nn.Linear, activation_class=act)
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config["max_cycles"] = STEPS
    return Experiment(
        task=task, algorithm_config=algorithm, model_config=model, critic_model_config=model, seed=0, config=config
    )


def maddpg() -> Any:
    config = MaddpgConfig.get_from_yaml()
    config.share_param_critic = False
    return config


def _updates(experiment: Experiment) -> Run:
    group = next(iter(experiment.group_map))
    batch = next(iter(experiment.collector))
    batch = experiment.algorithm.process_batch(group, batch)
    memory = experiment.replay_buffers[group]
    memory.extend(batch.reshape(-1).to(experiment.config.buffer_device))

    def run(updates: int) -> None:
        for _ in range(updates):
            experiment._optimizer_loop(group)

    return run


def update_maddpg() -> Run:
    return _updates(experiment_of(maddpg(), 2 * BATCH + 2, BATCH, nn.ReLU))


def update_mappo() -> Run:
    return _updates(experiment_of(MappoConfig.get_from_yaml(), ROWS, ROWS, nn.Tanh))


def collect() -> Run:
    frames = 200
    collector = iter(experiment_of(maddpg(), frames, BATCH, nn.ReLU).collector)

    def run(steps: int) -> None:
        for _ in range(steps // frames):
            next(collector)

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve({name: globals()[name] for name in ("update_maddpg", "update_mappo", "collect")})
