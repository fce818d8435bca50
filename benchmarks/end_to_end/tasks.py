"""The tasks: the same environment, network, batch and updates per step in every library."""

DQN_HIDDEN, DQN_BATCH, DQN_SYNC = (128, 128), 64, 500
SAC_HIDDEN, SAC_BATCH = (256, 256), 256
PPO_ENVS, PPO_STEPS, PPO_EPOCHS, PPO_MINIBATCH = 8, 32, 20, 256

TASKS = {
    "dqn_cartpole": ("DQN CartPole, one update of 64 a step, 2x128", 1_000),
    "ppo_cartpole": ("PPO CartPole, 8 environments, 32 steps, 20 epochs of one minibatch of 256", 2_560),
    "sac_halfcheetah": ("SAC HalfCheetah, one update of 256 a step, 2x256", 100),
}
"""Title and environment steps per turn."""
