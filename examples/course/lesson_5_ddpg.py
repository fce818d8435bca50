# %% [markdown]
# # Lesson 5: DDPG, when an action is a number
#
# Pendulum wants a torque between -2 and 2, and pays more the closer the pendulum is to standing still on its head (0
# at best, about -16 a step at worst; 200 steps). DQN took the largest of a few Q values; here there are infinitely
# many. **DDPG** (Lillicrap et al. 2015) has two networks:
#
#     critic   Q(s, a)   learns lesson 3's target, with the actor's choice in place of the maximum
#     actor    μ(s)      learns to choose what the critic likes best
#
#     target      = r + γ Q'(s', μ'(s'))             (only r when the episode terminated)
#     critic loss = mean of (Q(s, a) - target)²
#     actor loss  = - mean of Q(s, μ(s))
#     Q' ← (1 - τ) Q' + τ Q,   μ' ← (1 - τ) μ' + τ μ
#
# Both targets follow slowly, at every update. DDPG learns off-policy from a replay memory, as DQN does, and tries
# things out by adding noise to μ(s).

# %%
import copy
from typing import Any

import gymnasium as gym
import numpy as np
from arguments import read_arguments
from pictures import draw_map, new_figure, show

import parl
from parl import layers, training
from parl.utils import ReplayMemory

settings = read_arguments("Lesson 5: DDPG swings a pendulum up", backend=True)
if settings.backend:
    parl.set_backend(settings.backend)
GAMMA, TAU, LR, BATCH, NOISE, TORQUE = 0.98, 0.005, 1e-3, 64, 0.1, 2.0
STEPS, WARM_UP = (300, 200) if settings.smoke else (12_000, 1000)

# %% [markdown]
# ## Two networks in one model
#
# Actions are kept in [-1, 1] by a tanh, and multiplied by 2 for Pendulum.


# %%
class ActorCritic(parl.Model):
    def __init__(self) -> None:
        fc = layers.fc
        self.act_1, self.act_2, self.act_3 = fc(64, act="relu"), fc(64, act="relu"), fc(1, act="tanh")
        self.q_1, self.q_2, self.q_3 = fc(64, act="relu"), fc(64, act="relu"), fc(1)

    def policy(self, obs: Any) -> Any:
        return self.act_3(self.act_2(self.act_1(obs)))

    def value(self, obs: Any, action: Any) -> Any:
        return self.q_3(self.q_2(self.q_1(layers.concat([obs, action], axis=1))))

    def get_actor_params(self) -> list[Any]:
        return [parameter for layer in (self.act_1, self.act_2, self.act_3) for parameter in layer.parameters()]

    def get_critic_params(self) -> list[Any]:
        return [parameter for layer in (self.q_1, self.q_2, self.q_3) for parameter in layer.parameters()]


# %% [markdown]
# The actor's gradient runs through the critic: Q(s, μ(s)) depends on the actor's weights through the action. Each
# loss has an optimizer for its own part of the weights, so that the actor cannot please itself by bending the critic.


# %%
class MyDDPG(parl.Algorithm):
    ACTS_IN_UNIT_BOX = True  # so that `training.evaluate` stretches [-1, 1] to the environment's bounds

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.target_model = copy.deepcopy(model)
        self.actor_optimizer = parl.optim.Adam(model, lr=LR, part=model.get_actor_params)
        self.critic_optimizer = parl.optim.Adam(model, lr=LR, part=model.get_critic_params)

    def predict(self, obs: Any) -> Any:
        return self.model.policy(obs)

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
        follows = self.target_model.value(next_obs, self.target_model.policy(next_obs))
        goes_on = 1.0 - layers.cast(layers.reshape(terminal, [-1, 1]), "float32")
        target = (layers.reshape(reward, [-1, 1]) + GAMMA * goes_on * follows).detach()
        critic_loss = layers.reduce_mean(layers.square_error_cost(self.model.value(obs, action), target))
        self.critic_optimizer.minimize(critic_loss)
        actor_loss = -layers.reduce_mean(self.model.value(obs, self.model.policy(obs)))
        self.actor_optimizer.minimize(actor_loss)  # moves the actor's weights alone
        self.model.sync_weights_to(self.target_model, decay=1.0 - TAU)
        return critic_loss.detach(), actor_loss.detach()


class MyAgent(parl.Agent):
    def sample(self, obs: Any) -> Any:
        action = self.predict(obs)
        return np.clip(action + NOISE * self.rng.standard_normal(action.shape), -1.0, 1.0).astype(np.float32)


# %% [markdown]
# ## The loop
#
# As in lesson 3, after 1000 random steps. Pendulum never terminates; after 200 steps it is cut off, and the future
# counts.


# %%
def train(agent: MyAgent, memory: ReplayMemory, seed: int) -> Any:
    env: Any
    returns: list[float]
    env, returns, total = gym.make("Pendulum-v1"), [], 0.0
    obs, _ = env.reset(seed=seed)
    for step in range(STEPS):
        action = agent.sample(obs) if step >= WARM_UP else agent.rng.uniform(-1.0, 1.0, 1).astype(np.float32)
        next_obs, reward, terminated, truncated, _ = env.step(TORQUE * action)
        memory.append(obs, action, reward, next_obs, terminated)
        obs, total = next_obs, total + reward
        if terminated or truncated:
            returns, total = [*returns, total], 0.0
            obs, _ = env.reset()
        if step >= WARM_UP:
            batch = memory.sample(BATCH)
            agent.learn(batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminal)
    return np.array(returns)


training.seed_everything(0)
agent, memory = MyAgent(MyDDPG(ActorCritic()), seed=0), ReplayMemory(STEPS, obs_dim=3, act_dim=1, seed=0)
returns = train(agent, memory, seed=0)
tested = training.evaluate(agent, "Pendulum-v1", episodes=20, seed=1)
print(f"{len(returns)} episodes; the last 10 of them: mean return {returns[-10:].mean():.0f}")
print(f"20 episodes without noise: mean return {tested.mean:.0f}")

# %% [markdown]
# ## What the critic thinks
#
# Left: the value of each angle (0 is upright) and angular velocity, Q(s, μ(s)). Middle: the torque that the actor
# chooses there. Right: the critic's word against the facts. From 60 random states the actor plays 200 steps, and what
# it really collects, discounted, is compared with what the critic had promised.

# %%
angles, speeds = np.linspace(-np.pi, np.pi, 61), np.linspace(-8.0, 8.0, 61)


def observed(angle: Any, speed: Any) -> Any:
    return np.stack([np.cos(angle), np.sin(angle), speed], axis=-1).astype(np.float32)


def promised(obs: Any) -> Any:
    return agent.run(agent.alg.model.value, obs, agent.predict(obs))[:, 0]


def collected(angle: Any, speed: Any) -> float:
    env: Any = gym.make("Pendulum-v1").unwrapped
    env.reset()
    env.state, total = np.array([angle, speed]), 0.0
    for step in range(200):
        _, reward, _, _, _ = env.step(TORQUE * agent.predict(observed(*env.state)))
        total += GAMMA**step * reward
    return total


grid = observed(*np.meshgrid(angles, speeds)).reshape(-1, 3)
rng = np.random.default_rng(0)
starts = rng.uniform([-np.pi, -8.0], [np.pi, 8.0], size=(5 if settings.smoke else 60, 2))
words, facts = promised(observed(*starts.T)), np.array([collected(*start) for start in starts])
print(f"the critic promises {np.mean(words):.0f} in the mean, {np.mean(facts):.0f} come; ", end="")
print(f"correlation {np.corrcoef(words, facts)[0, 1]:.2f}")

figure, axes = new_figure(columns=3, width=3.6, height=3.0)
for ax, values, title, cmap in (
    (axes[0], promised(grid), "Q(s, μ(s))", "viridis"),
    (axes[1], TORQUE * agent.predict(grid)[:, 0], "torque μ(s)", "coolwarm"),
):
    draw_map(figure, ax, angles, speeds, values.reshape(61, 61), title, "angle (rad)", "angular velocity (rad/s)", cmap)
axes[2].plot([min(facts), 0], [min(facts), 0], color="grey", linestyle="--")
axes[2].scatter(facts, words, s=12)
axes[2].set(title="the critic and the facts", xlabel="collected", ylabel="promised")
show(figure, "5-critic", settings.pictures)

figure, (ax,) = new_figure(width=6.5)
ax.plot(returns, ".-")
ax.set(title="DDPG on Pendulum", xlabel="episode", ylabel="return")
ax.grid(alpha=0.3)
show(figure, "5-learning-curve", settings.pictures)

# %% [markdown]
# The bright band is the way up: fast enough to arrive, slow enough to stop. To its right the actor brakes one way, to
# its left the other, and near the bottom it pushes along with the swing, because 2 is too weak to lift the pendulum
# at once. The dots lie along the line: this critic is right in the mean. Some of its promises are above 0, though,
# which no reward allows.
#
# ## The ready-made one
#
# `parl.algorithms.DDPG` takes the same steps from the same weights:

# %%
ours = MyAgent(MyDDPG(ActorCritic()))
ready_made = parl.Agent(parl.algorithms.DDPG(ActorCritic(), gamma=GAMMA, tau=TAU, actor_lr=LR, critic_lr=LR))
for one in (ours, ready_made):
    one.run(one.alg.model.value, grid, one.predict(grid))  # layers get their shapes from the first batch
    one.set_weights(agent.get_weights())
    one.alg.model.sync_weights_to(one.alg.target_model)
for _ in range(10):
    batch = memory.sample(BATCH)
    for one in (ours, ready_made):
        one.learn(batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminal)
weights, others = ours.get_weights(), ready_made.get_weights()
apart = max(np.abs(weights[name] - others[name]).max() for name in weights)
print(f"after 10 updates the weights of the two differ by at most {apart:.0e}")

# %% [markdown]
# ## Exercises
#
# 1. **Shorten the horizon**: GAMMA = 0.9. What happens to the pictures?
#    *Idea:* 1 / (1 - γ) = 10 steps are half a second of the pendulum. What pays off later hardly counts, so that
#    values and torques say more about now than about the way up.
# 2. **Two critics** (TD3): train both on the same target, made of the smaller of their two words.
#    *Idea:* the actor looks for the point where the critic is most wrong in its favour. It has to fool both now. The
#    ready-made one is `parl.algorithms.TD3`, with a model that returns a pair.
# 3. **A policy that draws its actions** (SAC): what would replace the noise?
#    *Idea:* the actor gives a mean and a deviation, and is paid for staying undecided; `parl.algorithms.SAC`.
#
# That is the end of the course. Go on with [examples/quickstart](../quickstart), where PPO learns with environments
# in remote actors, and with the [pages of the algorithms](../../docs/reference/algorithms/index.md).
