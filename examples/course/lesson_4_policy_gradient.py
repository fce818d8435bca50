# %% [markdown]
# # Lesson 4: policy gradient, and what a baseline is for
#
# So far the agent learned what actions are worth, and acted accordingly. Now the network *is* the policy: it gives
# the probability π(a|s) of each action, and its weights θ are moved so that good actions become more probable. How
# much more? The mean return J of the policy has a gradient that can be estimated from episodes alone (Williams 1992:
# **REINFORCE**):
#
#     ∇J = mean of  Σ_t  ∇ log π(a_t|s_t) · G_t
#     G_t = r_t + γ r_t+1 + γ² r_t+2 + …                 what came after the action
#
# In words: make every action more probable, in proportion to what followed it. It is on-policy: after each update the
# old episodes are of a policy that is no more.

# %%
from typing import Any

import gymnasium as gym
import numpy as np
from arguments import read_arguments
from pictures import draw_runs, new_figure, show

import parl
from parl import layers, training
from parl.utils import calc_discount_sum_rewards

settings = read_arguments("Lesson 4: policy gradient on CartPole, with and without a baseline", backend=True)
if settings.backend:
    parl.set_backend(settings.backend)
GAMMA, LR = 0.99, 1e-2
EPISODES, SEEDS, SAMPLED = (10, 2, 20) if settings.smoke else (150, 5, 500)

# %% [markdown]
# The same three parts as in lesson 3. The frameworks know how to go down the gradient of a loss, so the loss is the
# sum above with the sign turned around.


# %%
class Policy(parl.Model):
    def __init__(self) -> None:
        self.hidden, self.out = layers.fc(32, act="tanh"), layers.fc(2, act="softmax")

    def forward(self, obs: Any) -> Any:
        return self.out(self.hidden(obs))


class Reinforce(parl.Algorithm):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.optimizer = parl.optim.Adam(model, lr=LR)

    def predict(self, obs: Any) -> Any:
        return self.model(obs)

    def learn(self, obs: Any, action: Any, weight: Any) -> Any:
        probability = layers.reduce_sum(self.model(obs) * layers.one_hot(action, 2), dim=1)
        loss = -layers.reduce_mean(layers.log(probability) * weight)  # down its gradient is up J's
        self.optimizer.minimize(loss)
        return loss.detach()


class PolicyAgent(parl.Agent):
    def sample(self, obs: Any) -> int:
        return int(self.rng.random() < self.predict(obs)[1])


# %% [markdown]
# An episode is played to its end before anything is learned, because G_t is not known earlier.


# %%
def play(env: Any, agent: parl.Agent) -> tuple[Any, Any, Any]:
    (obs, _), over, steps = env.reset(), False, []
    while not over:
        action = agent.sample(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        steps.append((obs, action, reward))
        obs, over = next_obs, terminated or truncated
    seen, actions, rewards = (np.array(column) for column in zip(*steps, strict=True))
    return seen, actions, calc_discount_sum_rewards(rewards, GAMMA)


# %% [markdown]
# ## The noise of the estimate
#
# The pole stands for 20 steps by chance, and *every* action of the episode is praised, good or bad. Right in the
# mean, but the mean of very many episodes. A **baseline** b that does not depend on the action leaves the mean as it
# is, because probabilities add up to 1 and so Σ_a ∇π(a|s) · b = 0. What it changes is the scatter: with b the usual
# outcome, actions are praised for being better than usual, and blamed for being worse.
#
#     ∇J = mean of  Σ_t  ∇ log π(a_t|s_t) · (G_t - b_t)
#
# Our b_t is simple: the mean of G_t over other episodes that got as far as step t. To see the noise we play episodes
# with one policy that stays as it is. The part of ∇ log π that belongs to the bias of the output for action 1 is (a -
# π(1|s)), which needs no framework.


# %%
def mean_by_step(episodes: list[Any]) -> Any:
    """b_t: the mean of G_t over the episodes that have a step t."""
    table = np.full((len(episodes), max(map(len, episodes))), np.nan)
    for row, returns in zip(table, episodes, strict=True):
        row[: len(returns)] = returns
    return np.nanmean(table, axis=0)


training.seed_everything(0)
env, agent = gym.make("CartPole-v1"), PolicyAgent(Reinforce(Policy()), seed=0)
env.reset(seed=0)
others = mean_by_step([play(env, agent)[2] for _ in range(SAMPLED)])
estimates: dict[str, list[float]] = {"whole return G_0": [], "what came after, G_t": [], "G_t - b_t": []}
for _ in range(SAMPLED):
    seen, actions, returns = play(env, agent)
    direction = actions - agent.predict(seen)[:, 1]
    usual = np.pad(others, (0, 500 - len(others)))[: len(returns)]
    for name, weight in zip(estimates, (np.full_like(returns, returns[0]), returns, returns - usual), strict=True):
        estimates[name].append(float(direction @ weight))
for name, values in estimates.items():
    error = np.std(values) / np.sqrt(SAMPLED)
    print(f"{name}: mean {np.mean(values):.1f} ± {error:.1f}, deviation of one episode {np.std(values):.1f}")

# %%
figure, axes = new_figure(columns=3, width=3.2, height=2.6)
edges = np.linspace(-150, 150, 41)
for ax, (name, values) in zip(axes, estimates.items(), strict=True):
    ax.hist(np.clip(values, -150, 150), bins=edges)
    ax.axvline(np.mean(values), color="tab:orange")
    ax.set(title=name, xlabel=f"gradient, deviation {np.std(values):.0f}")
show(figure, "4-gradient-noise", settings.pictures)

# %% [markdown]
# The three means (orange) estimate the same number, and their errors do not tell them apart. What one episode says
# about it scatters three times less in the end, so that nine times fewer episodes tell as much.
#
# ## And does it matter?
#
# Each episode is followed by one update, with weights G_t, or with G_t - b_t, where b_t comes from the last 20
# episodes.


# %%
def train(seed: int, baseline: bool) -> list[int]:
    training.seed_everything(seed)
    env, agent = gym.make("CartPole-v1"), PolicyAgent(Reinforce(Policy()), seed=seed)
    env.reset(seed=seed)
    lengths: list[int]
    recent: list[Any]
    lengths, recent = [], []
    for _ in range(EPISODES):
        seen, actions, returns = play(env, agent)
        recent = [*recent[-19:], returns]
        agent.learn(seen, actions, returns - mean_by_step(recent)[: len(returns)] if baseline else returns)
        lengths.append(len(returns))
    return lengths


VARIANTS = {"G_t": False, "G_t - b_t": True}
curves = {name: [train(seed, baseline) for seed in range(SEEDS)] for name, baseline in VARIANTS.items()}
for name, runs in curves.items():
    print(f"{name}: mean return of the last 30 episodes", ", ".join(f"{np.mean(run[-30:]):.0f}" for run in runs))

figure, (ax,) = new_figure(width=6.5)
for colour, (name, runs) in enumerate(curves.items()):
    draw_runs(ax, runs, f"{name}, median and middle half of {SEEDS} seeds", window=20, colour=colour)
ax.set(title="REINFORCE on CartPole", xlabel="episode", ylabel="mean return of 20 episodes")
ax.legend(loc="center left")
show(figure, "4-learning-curves", settings.pictures)

# %% [markdown]
# It does: with the same number of episodes and the same learning rate, every seed with the baseline ends near the 500
# steps at which an episode is cut off (487 to 500), and the best one without it is at 110. On PaddlePaddle, which
# begins with other weights, it is 400 to 498 with the baseline, and 22 to 478 without.
#
# ## The ready-made one
#
# `parl.algorithms.PolicyGradient` takes the same step from the same weights:

# %%
ours, ready_made = PolicyAgent(Reinforce(Policy())), parl.Agent(parl.algorithms.PolicyGradient(Policy(), lr=LR))
for one in (ours, ready_made):
    one.predict(seen)  # layers get their shapes from the first batch
    one.set_weights(agent.get_weights())
    for _ in range(10):
        one.learn(seen, actions, returns)
weights, others = ours.get_weights(), ready_made.get_weights()
apart = max(np.abs(weights[name] - others[name]).max() for name in weights)
print(f"after 10 updates the weights of the two differ by at most {apart:.0e}")

# %% [markdown]
# ## Exercises
#
# 1. **Normalise**: as weights take `parl.utils.calc_discount_norm_reward(rewards, GAMMA)`, (G_t - mean) / deviation
#    over the episode, which is what PARL's QuickStart does.
#    *Idea:* the size of a step no longer grows with the return. The last actions before the pole falls get the blame,
#    the first ones the praise. But every episode has as much of both, also the best one.
# 2. **Let b depend on the state**: a second network V(s), trained on (V(s_t) - G_t)², whose output is the baseline.
#    *Idea:* it still does not depend on the action, so the mean stays. It knows when the pole is about to fall, which
#    the number of the step does not tell. This is an actor-critic; `parl.algorithms.A2C` is ready-made.
# 3. **Learn ten times from the same episode.** What is wrong with that?
#    *Idea:* after the first update the episode is one of another policy, and ∇J is estimated with the wrong
#    probabilities. PPO weighs each step by the ratio of the probabilities, and stops where it leaves [0.8, 1.2].
