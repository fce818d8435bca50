"""BenchMARL in `speed.py`: its experiments' own collector, memory and update, with networks of the same sizes."""

import tempfile
from typing import Any

import torch
from benchmarl.algorithms import MaddpgConfig, MappoConfig, QmixConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models import GruConfig, MlpConfig, SequenceModelConfig
from serving import BATCH, EPISODES, HIDDEN, ROWS, STEPS, Run, serve
from torch import nn


def mlp(act: type[nn.Module], hidden: int = 2) -> MlpConfig:
    return MlpConfig(num_cells=[HIDDEN] * hidden, layer_class=nn.Linear, activation_class=act)


def experiment_of(
    algorithm: Any, model: Any, frames: int, batch: int, *, shared: bool = False, envs: int = 5
) -> Experiment:
    """Return an experiment after one collection, so that its memory has a batch."""
    config = ExperimentConfig.get_from_yaml()
    config.loggers, config.create_json, config.render, config.evaluation = [], False, False, False
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    config.prefer_continuous_actions, config.share_policy_params = False, shared
    config.on_policy_collected_frames_per_batch = config.off_policy_collected_frames_per_batch = frames
    config.on_policy_n_envs_per_worker = config.off_policy_n_envs_per_worker = envs
    config.on_policy_minibatch_size = config.off_policy_train_batch_size = batch
    config.save_folder = tempfile.mkdtemp()
    config.max_n_frames, config.off_policy_init_random_frames = 10_000_000, 0
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config["max_cycles"] = STEPS
    return Experiment(
        task=task, algorithm_config=algorithm, model_config=model, critic_model_config=model, seed=0, config=config
    )


def maddpg(frames: int) -> Experiment:
    config = MaddpgConfig.get_from_yaml()
    config.share_param_critic = False
    return experiment_of(config, mlp(nn.ReLU), frames, BATCH)


def _updates(experiment: Experiment) -> Run:
    group = next(iter(experiment.group_map))
    batch = next(iter(experiment.collector))
    batch = experiment.algorithm.process_batch(group, batch)
    memory = experiment.replay_buffers[group]
    rows = batch if experiment.algorithm.has_rnn else batch.reshape(-1)
    memory.extend(rows.to(experiment.config.buffer_device))

    def run(updates: int) -> None:
        for _ in range(updates):
            experiment._optimizer_loop(group)

    return run


def update_maddpg() -> Run:
    return _updates(maddpg(2 * BATCH + 2))


def update_qmix() -> Run:
    memory = GruConfig.get_from_yaml()
    memory.hidden_size, memory.mlp_num_cells = HIDDEN, []
    model = SequenceModelConfig(model_configs=[mlp(nn.ReLU, 0), memory], intermediate_sizes=[HIDDEN])
    frames = EPISODES * STEPS
    return _updates(experiment_of(QmixConfig.get_from_yaml(), model, frames, frames, shared=True, envs=EPISODES))


def update_mappo() -> Run:
    return _updates(experiment_of(MappoConfig.get_from_yaml(), mlp(nn.Tanh), ROWS, ROWS, shared=True))


def collect() -> Run:
    frames = 200
    collector = iter(maddpg(frames).collector)

    def run(steps: int) -> None:
        for _ in range(steps // frames):
            next(collector)

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve({name: globals()[name] for name in ("update_maddpg", "update_qmix", "update_mappo", "collect")})
