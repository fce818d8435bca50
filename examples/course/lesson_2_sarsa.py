# %% [markdown]
# # Lesson 2: Sarsa, and why it takes another way
#
# The agent walks from S to G along a cliff. Every step costs 1; a step into the cliff costs 100 and puts it back at
# S. Nothing is slippery here. The only chance in the game is the agent's own: with ε = 0.1 it tries something at
# random.
#
# Q-learning, of lesson 1, asks: *what is the best I could do from s' on?* **Sarsa** (Rummery & Niranjan 1994) asks:
# *what will I really do from s' on, the random actions included?* Its target takes the action a' that the agent
# chooses next, and its name is what an update needs, (s, a, r, s', a'):
#
#     Q-learning:   Q(s, a) ← Q(s, a) + α (r + γ max_b Q(s', b) - Q(s, a))      off-policy
#     Sarsa:        Q(s, a) ← Q(s, a) + α (r + γ     Q(s', a') - Q(s, a))       on-policy

# %%
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from arguments import read_arguments
from pictures import draw_grid, draw_runs, new_figure, show

settings = read_arguments("Lesson 2: Sarsa and Q-learning beside a cliff")
env: Any = gym.make("CliffWalking-v1")  # 4 x 12 fields, 4 actions: up, right, down, left
GAMMA, ALPHA, EPSILON = 1.0, 0.5, 0.1
EPISODES, SEEDS = (60, 2) if settings.smoke else (500, 10)

# %% [markdown]
# One loop for both: they differ in one line, the value of what follows. (`a_next` is chosen before the update, and is
# what Sarsa then does. Q-learning chooses again afterwards; its update has not asked what that will be.)


# %%
def choose(q: np.ndarray, s: int, epsilon: float, rng: np.random.Generator) -> int:
    if rng.random() < epsilon:
        return int(rng.integers(4))
    return int(rng.choice(np.flatnonzero(q[s] == q[s].max())))


def train(
    sarsa: bool, seed: int, episodes: int = EPISODES, epsilon_of: Callable[[int], float] = lambda _: EPSILON
) -> tuple[np.ndarray, np.ndarray]:
    rng, q, returns = np.random.default_rng(seed), np.zeros((48, 4)), []
    for episode in range(episodes):
        epsilon = epsilon_of(episode)
        (s, _), total, terminated = env.reset(), 0.0, False
        a = choose(q, s, epsilon, rng)
        while not terminated:
            s_next, r, terminated, _, _ = env.step(a)
            a_next = choose(q, s_next, epsilon, rng)
            follows = q[s_next, a_next] if sarsa else q[s_next].max()
            q[s, a] += ALPHA * (r + (0.0 if terminated else GAMMA * follows) - q[s, a])
            a = a_next if sarsa else choose(q, s_next, epsilon, rng)
            s, total = s_next, total + r
        returns.append(total)
    return q, np.array(returns)


def walk(q: np.ndarray, limit: int = 100) -> tuple[list[tuple[int, int]], float]:
    """The fields that the greedy policy goes through, without any random action."""
    fields: list[tuple[int, int]]
    (s, _), terminated, fields, total = env.reset(), False, [], 0.0
    while not terminated and len(fields) < limit:
        fields.append(divmod(s, 12))
        s, r, terminated, _, _ = env.step(int(q[s].argmax()))
        total += r
    return [*fields, divmod(s, 12)], total


NAMES = {"Q-learning": False, "Sarsa": True}
runs = {name: [train(sarsa, seed) for seed in range(SEEDS)] for name, sarsa in NAMES.items()}
last = EPISODES // 5
for name, trained in runs.items():
    learning = np.mean([returns[-last:] for _, returns in trained])
    greedy = sorted(walk(q)[1] for q, _ in trained)
    print(f"{name}: mean return of the last {last} episodes {learning:.1f}; then without random actions")
    print("   ", ", ".join(f"{value:.0f} ({greedy.count(value)} x)" for value in sorted(set(greedy), reverse=True)))

# %% [markdown]
# While they learn, Sarsa collects more; without random actions, Q-learning's way is shorter. Both are right, each
# about its own question. To a policy that stumbles once in ten steps, the field beside the cliff *is* worth less, and
# Sarsa knows it.

# %%
figure, (ax,) = new_figure(width=6.5)
for colour, (name, trained) in enumerate(runs.items()):
    draw_runs(
        ax,
        [returns for _, returns in trained],
        f"{name}, median and middle half of {SEEDS} seeds",
        window=20,
        colour=colour,
    )
ax.set(title="Return while learning, ε = 0.1", xlabel="episode", ylabel="mean return of 20 episodes", ylim=(-150, 0))
ax.legend(loc="lower right")
show(figure, "2-learning-curves", settings.pictures)

labels = np.full((4, 12), "", dtype=object)
labels[3, 0], labels[3, 1:11], labels[3, 11] = "S", "cliff", "G"
figure, axes = new_figure(columns=2, width=5.6, height=2.3)
for ax, (name, trained) in zip(axes, runs.items(), strict=True):
    values = np.mean([q.max(axis=1) for q, _ in trained], axis=0).reshape(4, 12)
    way = walk(trained[0][0])[0]
    draw_grid(ax, np.where(labels == "", values, np.nan), name, labels, path=way, number="{:.0f}", limits=(-25, 0))
show(figure, "2-ways", settings.pictures)

# %% [markdown]
# The numbers are the values of the fields (mean over the seeds), the line is the greedy way of seed 0. A greedy
# return of -100 is a policy that walks in circles: with α = 0.5 and chance in its targets, Sarsa's table never comes
# to rest.
#
# ## And when the random actions end?
#
# Let ε sink to 0. What the agent really does and the best that it could do then become the same, and so do the two
# updates.

# %%
SINKING = 60 if settings.smoke else 1000
for name, sarsa in NAMES.items():
    sunk = [train(sarsa, seed, SINKING, lambda episode: 0.1 * (1 - episode / SINKING)) for seed in range(SEEDS)]
    learning = np.mean([returns[-50:] for _, returns in sunk])
    print(f"{name}, ε from 0.1 to 0: mean return of the last 50 episodes {learning:.1f}")

# %% [markdown]
# Now Q-learning is ahead: nobody falls any more, and its way is the shorter one. Sarsa stays where it was safe to
# walk when ε was 0.1, because it has stopped to visit the fields whose values have changed since. (In theory it finds
# -13 as well, if ε sinks so slowly that every action is tried again and again: Singh et al. 2000.) So: Sarsa where
# the mistakes of learning are paid for, Q-learning where only the result counts. Lessons 3 and 5 build on Q-learning,
# lesson 4 is on-policy.
#
# ## Exercises
#
# 1. **Expected Sarsa**: replace `Q(s', a')` by its mean over what ε-greedy may choose, (1 - ε) max_b Q + ε mean_b Q.
#    *Idea:* same answer as Sarsa with less noise, because the chance in a' is computed and not drawn. Even α = 1
#    works: all ten seeds end with a way of -15, and collect -20 while they learn.
# 2. **Make the ground slippery** with `gym.make("CliffWalking-v1", is_slippery=True)`. Which way does Q-learning take
#    now?
#    *Idea:* now the danger is the world's and not the agent's own, so that Q-learning, too, steps away from the cliff
#    in the row beside it.
# 3. **ε = 0.5.** Where does Sarsa walk, and where Q-learning?
#    *Idea:* Q-learning's way does not change. To Sarsa, going anywhere near the cliff becomes so dear that half of
#    the greedy policies walk in circles.
