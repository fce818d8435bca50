"""The Getting Started of PARL 1.x on static graphs: PolicyGradient balances CartPole; `--help` lists the settings."""

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

# Networks this small are slower on several threads; paddle reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import paddle

import parl
from parl import layers, training
from parl.utils import calc_discount_norm_reward, logger
from parl_core.training.curves import draw_curve

OBS_DIM, ACT_DIM, GAMMA = 4, 2, 0.99
SOLVED = 195.0  # the mean return at which CartPole-v0 counts as solved


@dataclass(frozen=True)
class Settings:
    """Trains the CartPole agent of the PARL 1.x manual, whose predictions and updates are paddle programs."""

    seed: Annotated[int, "seed of weights, environment and sampling"] = 0
    episodes: Annotated[int, "episodes to learn from"] = 1000
    tests: Annotated[int, "episodes of the evaluation after training"] = 100
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    smoke: Annotated[bool, "30 episodes only, to see that everything runs"] = False


class CartpoleModel(parl.Model):
    def __init__(self, act_dim: int) -> None:
        hid1_size = act_dim * 10

        self.fc1 = layers.fc(size=hid1_size, act="tanh")
        self.fc2 = layers.fc(size=act_dim, act="softmax")

    def forward(self, obs: Any) -> Any:
        out = self.fc1(obs)
        out = self.fc2(out)
        return out


class CartpoleAgent(parl.Agent):
    fluid_executor: Any  # parl-paddle's agents have it

    def __init__(self, algorithm: parl.Algorithm, obs_dim: int, act_dim: int) -> None:
        self.obs_dim = obs_dim
        self.act_dim = act_dim
        super().__init__(algorithm)

    def build_program(self) -> None:
        self.pred_program = paddle.static.Program()
        self.learn_program = paddle.static.Program()

        with paddle.static.program_guard(self.pred_program):
            obs = layers.data(name="obs", shape=[self.obs_dim], dtype="float32")
            self.act_prob = self.alg.predict(obs)

        with paddle.static.program_guard(self.learn_program):
            obs = layers.data(name="obs", shape=[self.obs_dim], dtype="float32")
            act = layers.data(name="act", shape=[1], dtype="int64")
            reward = layers.data(name="reward", shape=[], dtype="float32")
            self.cost = self.alg.learn(obs, act, reward)

    def sample(self, obs: Any) -> Any:
        return np.random.choice(range(self.act_dim), p=self.probabilities(obs))

    def predict(self, obs: Any) -> Any:
        return np.argmax(self.probabilities(obs))

    def probabilities(self, obs: Any) -> Any:
        obs = np.expand_dims(obs, axis=0)
        act_prob = self.fluid_executor.run(
            self.pred_program, feed={"obs": obs.astype("float32")}, fetch_list=[self.act_prob]
        )[0]
        return np.squeeze(act_prob, axis=0)

    def learn(self, obs: Any, act: Any, reward: Any) -> Any:
        act = np.expand_dims(act, axis=-1)
        feed = {"obs": obs.astype("float32"), "act": act.astype("int64"), "reward": reward.astype("float32")}
        cost = self.fluid_executor.run(self.learn_program, feed=feed, fetch_list=[self.cost])[0]
        return cost


def run_episode(
    env: Any, agent: CartpoleAgent, train_or_test: str = "train"
) -> tuple[list[Any], list[Any], list[float]]:
    obs_list, action_list, reward_list = [], [], []
    obs, _ = env.reset()
    while True:
        obs_list.append(obs)
        if train_or_test == "train":
            action = agent.sample(obs)
        else:
            action = agent.predict(obs)
        action_list.append(action)

        obs, reward, terminated, truncated, _ = env.step(action)
        reward_list.append(reward)

        if terminated or truncated:
            break
    return obs_list, action_list, reward_list


def make_env(seed: int) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1", max_episode_steps=200)  # the limit of CartPole-v0
    env.reset(seed=seed)
    return env


def make_agent() -> CartpoleAgent:
    model = CartpoleModel(act_dim=ACT_DIM)
    alg = parl.algorithms.PolicyGradient(model, lr=1e-3)
    return CartpoleAgent(alg, obs_dim=OBS_DIM, act_dim=ACT_DIM)


def train(agent: CartpoleAgent, episodes: int, seed: int) -> list[float]:
    env = make_env(seed)
    returns = []
    for i in range(episodes):
        obs_list, action_list, reward_list = run_episode(env, agent)
        returns.append(sum(reward_list))
        if i % 10 == 0:
            logger.info(f"Episode {i}, Reward Sum {sum(reward_list)}")

        batch_obs = np.array(obs_list)
        batch_action = np.array(action_list)
        batch_reward = calc_discount_norm_reward(reward_list, GAMMA)

        agent.learn(batch_obs, batch_action, batch_reward)
        if (i + 1) % 100 == 0:
            _, _, reward_list = run_episode(env, agent, train_or_test="test")
            logger.info(f"Test reward: {sum(reward_list)}")
    return returns


def test(agent: CartpoleAgent, episodes: int, seed: int) -> float:
    env = make_env(seed)
    returns = [sum(run_episode(env, agent, train_or_test="test")[2]) for _ in range(episodes)]
    return float(np.mean(returns))


def write_returns(path: Path, returns: list[float]) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["episode", "return"])
        rows.writerows(enumerate(returns, start=1))


def main(settings: Settings) -> None:
    episodes, tests = (30, 5) if settings.smoke else (settings.episodes, settings.tests)
    parl.set_backend("paddle")
    with training.Run("paddle-static", settings.runs) as run:
        training.seed_everything(settings.seed)
        agent = make_agent()
        returns = train(agent, episodes, settings.seed)
        write_returns(run.path / "returns.csv", returns)
        run.saved(run.path / "returns.csv", "returns of the training episodes")
        draw_curve(
            run.path / "learning-curve.png",
            f"PolicyGradient on static graphs, CartPole with 200 steps, seed {settings.seed}",
            range(1, episodes + 1),
            returns,
            evaluations=[],
            goal=SOLVED,
            xlabel="training episodes",
        )
        run.saved(run.path / "learning-curve.png", "learning curve")
        saved = run.save(agent)

        trained = test(agent, tests, seed=settings.seed + 1)
        print(f"Mean return of {tests} test episodes: {trained} (CartPole-v0 asks for {SOLVED:g})")
        another = make_agent()
        another.restore(saved)
        restored = test(another, tests, seed=settings.seed + 1)
        print(f"Restored into new programs: {restored} ({'the same' if restored == trained else 'not the same'})")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
