"""Two agents per algorithm, one with recorded programs and one eager; arrays in, floats out."""

from typing import Any

import numpy as np
import paddle

import parl
from parl import algorithms, layers
from parl_paddle.networks import ActorCritic, QNetwork, SquashedActorCritic, TwinActorCritic

ROWS = np.random.default_rng(0)


class TutorialModel(parl.Model):
    """The network of "Getting Started" of PARL 1.x."""

    def __init__(self) -> None:
        self.fc1 = layers.fc(size=20, act="tanh")
        self.fc2 = layers.fc(size=2, act="softmax")

    def forward(self, obs: Any) -> Any:
        return self.fc2(self.fc1(obs))


class StaticAgent(parl.Agent):
    """An agent whose `predict` and `learn` run programs."""

    executor: Any  # parl-paddle\'s agents have it

    def __init__(self, algorithm: Any, columns: dict[str, Any]) -> None:
        self.columns = columns
        super().__init__(algorithm)

    def build_program(self) -> None:
        self.pred_program, self.learn_program = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.pred_program):
            self.output = self.alg.predict(self._input("obs"))
        with paddle.static.program_guard(self.learn_program):
            figures = self.alg.learn(*(self._input(name) for name in self.columns))
            self.figures = list(figures) if isinstance(figures, tuple) else [figures]

    def _input(self, name: str) -> Any:
        column = self.columns[name]
        return layers.data(name, list(column.shape[1:]), str(column.dtype))

    def act(self, obs: Any) -> Any:
        """Return the algorithm's prediction for one observation as an array."""
        return self.executor.run(self.pred_program, feed={"obs": obs[None]}, fetch_list=[self.output])[0][0]

    def update(self) -> Any:
        """Take a gradient step on the batch, and return the metrics."""
        return self.executor.run(self.learn_program, feed=self.columns, fetch_list=self.figures)


class EagerAgent(parl.Agent):
    """An agent that computes eagerly."""

    def __init__(self, algorithm: Any, columns: dict[str, Any]) -> None:
        self.columns = columns
        super().__init__(algorithm)

    def act(self, obs: Any) -> Any:
        return self._forward(self.alg.predict, obs[None])[0]

    def update(self) -> Any:
        return self.run(self.alg.learn, *self.columns.values())


def _columns(rows: int, obs_dim: int, action: Any) -> dict[str, Any]:
    obs, next_obs = ROWS.normal(size=(2, rows, obs_dim)).astype(np.float32)
    reward = ROWS.normal(size=rows).astype(np.float32)
    return {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "terminal": ROWS.random(rows) < 0.05}


def policy_gradient() -> tuple[Any, dict[str, Any]]:
    """The tutorial: 2 layers, an episode of 200 steps."""
    transitions = _columns(200, 4, ROWS.integers(2, size=(200, 1)))
    columns = {name: transitions[name] for name in ("obs", "action", "reward")}
    return algorithms.PolicyGradient(TutorialModel(), lr=1e-3), columns


def dqn() -> tuple[Any, dict[str, Any]]:
    """MLP 2x128, batch 64."""
    return algorithms.DQN(QNetwork(2, (128, 128)), gamma=0.99, lr=1e-3), _columns(64, 4, ROWS.integers(2, size=64))


def ppo() -> tuple[Any, dict[str, Any]]:
    """MLP 2x64 for policy and value each, minibatch 64."""
    numbers = ROWS.normal(size=(4, 64)).astype(np.float32)
    columns = {"obs": ROWS.normal(size=(64, 4)).astype(np.float32), "action": ROWS.integers(2, size=64)}
    columns |= dict(zip(("value", "return", "log_prob", "advantage"), numbers, strict=True))
    return algorithms.PPO(ActorCritic(2, (64, 64))), columns


def _continuous() -> dict[str, Any]:
    return _columns(256, 17, np.tanh(ROWS.normal(size=(256, 6))).astype(np.float32))


def td3() -> tuple[Any, dict[str, Any]]:
    """MLP 2x256, batch 256."""
    return algorithms.TD3(TwinActorCritic(6, (256, 256))), _continuous()


def sac() -> tuple[Any, dict[str, Any]]:
    """MLP 2x256, batch 256, fixed alpha."""
    return algorithms.SAC(SquashedActorCritic(6, (256, 256)), alpha=0.2), _continuous()
