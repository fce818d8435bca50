"""The steps of an algorithm beside gradients continue in a program: targets, counters, schedules, delayed steps."""

# mypy: allow-untyped-calls
# Paddle leaves its programs untyped.

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.schedules import linear
from parl_paddle import distributions, layers
from parl_paddle.agent import Agent
from parl_paddle.algorithms import (
    A2C,
    AWAC,
    CQL,
    DDPG,
    DDQN,
    DQN,
    IMPALA,
    IQL,
    OAC,
    PPO,
    REDQ,
    SAC,
    TD3,
    TD3BC,
    TQC,
    BootstrappedDDPG,
    DecisionTransformer,
    OfflineQ,
)
from parl_paddle.model import Model
from parl_paddle.networks import (
    ActorCritic,
    EnsembleActorCritic,
    GaussianActorCritic,
    QNetwork,
    QuantileActorCritic,
    TwinActorCritic,
)

ROWS, OBS_DIM, ACT_DIM, STEPS = 8, 3, 2, 4
RNG = np.random.default_rng(5)
OBS, NEXT_OBS = RNG.normal(size=(2, ROWS, OBS_DIM)).astype(np.float32)
REWARD, RETURN, ADVANTAGE = RNG.normal(size=(3, ROWS)).astype(np.float32)
TERMINAL = RNG.random(ROWS) < 0.4
CHOICE = RNG.integers(ACT_DIM, size=ROWS)
CONTINUOUS = {
    "obs": OBS,
    "action": np.tanh(RNG.normal(size=(ROWS, ACT_DIM))).astype(np.float32),
    "reward": REWARD,
    "next_obs": NEXT_OBS,
    "terminal": TERMINAL,
}
DISCRETE = CONTINUOUS | {"action": CHOICE}


class Critics(Model):
    """Actor, twin critics and a value in one, for every off-policy actor-critic."""

    def __init__(self, *, gaussian: bool, twins: bool) -> None:
        self.gaussian, self.twins = gaussian, twins
        self.hidden, self.mean = paddle.nn.Linear(OBS_DIM, 8), paddle.nn.Linear(8, ACT_DIM)
        self.q1, self.q2 = (paddle.nn.Linear(OBS_DIM + ACT_DIM, 1) for _ in range(2))
        self.v = paddle.nn.Linear(OBS_DIM, 1)
        if gaussian:
            self.log_std = paddle.nn.Linear(8, ACT_DIM)

    def policy(self, obs: Any) -> Any:
        hidden = paddle.tanh(self.hidden(obs))
        if self.gaussian:
            return self.mean(hidden), self.log_std(hidden).clip(-5.0, 2.0)
        return paddle.tanh(self.mean(hidden))

    def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that TD3 asks for
        return self.q1(paddle.concat([obs, action], axis=-1))

    def q_value(self, obs: Any, action: Any) -> Any:
        return self.Q1(obs, action), self.q2(paddle.concat([obs, action], axis=-1))

    def value(self, obs: Any, action: Any = None) -> Any:
        if action is None:
            return self.v(obs)
        return self.q_value(obs, action) if self.twins else self.Q1(obs, action)

    def get_actor_params(self) -> list[Any]:
        return [*self.hidden.parameters(), *self.mean.parameters()]

    def get_critic_params(self) -> list[Any]:
        return [*self.q1.parameters(), *self.q2.parameters()]

    def get_value_params(self) -> list[Any]:
        return list(self.v.parameters())


class OneHead(Critics):
    """The same in the shapes of heads."""

    def policy(self, obs: Any) -> Any:
        return super().policy(obs).unsqueeze(1)

    def value(self, obs: Any, action: Any = None) -> Any:
        return super().value(obs, action[:, 0])


class Sequences(Model):
    """A stand-in for a transformer with its arguments."""

    def __init__(self) -> None:
        self.out = paddle.nn.Linear(OBS_DIM + ACT_DIM + 1, ACT_DIM)

    def forward(self, obs: Any, action: Any, return_to_go: Any, timestep: Any, mask: Any) -> Any:
        del timestep, mask
        return self.out(paddle.concat([obs, action, return_to_go.unsqueeze(-1)], axis=-1))


class Builder(Agent):
    """Has one method of its algorithm as a program; `step` runs it on the arrays and returns its figures."""

    def __init__(self, algorithm: Any, inputs: dict[str, Any], method: str = "learn") -> None:
        self.inputs, self.method = inputs, method
        super().__init__(algorithm)

    def build_program(self) -> None:
        self.learn_program = paddle.static.Program()
        with paddle.static.program_guard(self.learn_program):
            columns = [
                layers.data(name, list(array.shape[1:]), str(array.dtype)) for name, array in self.inputs.items()
            ]
            self.fetch = _flat(getattr(self.alg, self.method)(*columns))

    def step(self) -> list[Any]:
        fetched: list[Any] = self.executor.run(self.learn_program, feed=self.inputs, fetch_list=self.fetch)
        return fetched


def _flat(result: Any) -> list[Any]:
    return [part for item in result for part in _flat(item)] if isinstance(result, tuple) else [result]


def _a2c() -> tuple[Any, dict[str, Any]]:
    columns = {"obs": OBS, "actions": CHOICE, "advantages": ADVANTAGE, "target_values": RETURN}
    return A2C(ActorCritic(ACT_DIM, (8,)), learning_rate=linear(1e-2, 1e-3, 4), vf_loss_coeff=0.5), columns


def _ppo() -> tuple[Any, dict[str, Any]]:
    columns = {"obs": OBS, "action": CHOICE, "value": REWARD, "return": RETURN, "log_prob": REWARD, "adv": ADVANTAGE}
    settings: dict[str, Any] = {"clip_param": linear(0.3, 0.1, 4), "entropy_coef": linear(0.1, 0.0, 4)}
    return PPO(ActorCritic(ACT_DIM, (8,)), initial_lr=linear(1e-2, 1e-3, 4), **settings), columns


def _impala() -> tuple[Any, dict[str, Any]]:
    logits = RNG.normal(size=(ROWS, ACT_DIM)).astype(np.float32)
    columns = {"obs": OBS, "actions": CHOICE, "logits": logits, "rewards": REWARD, "dones": TERMINAL}
    return IMPALA(ActorCritic(ACT_DIM, (8,)), sample_batch_steps=STEPS, learning_rate=1e-2), columns


def _decision_transformer() -> tuple[Any, dict[str, Any]]:
    size = (ROWS, STEPS)
    columns = {
        "obs": RNG.normal(size=(*size, OBS_DIM)).astype(np.float32),
        "action": RNG.normal(size=(*size, ACT_DIM)).astype(np.float32),
        "return_to_go": RNG.normal(size=size).astype(np.float32),
        "timestep": np.tile(np.arange(STEPS), (ROWS, 1)),
        "mask": np.ones(size, np.float32),
    }
    return DecisionTransformer(Sequences(), linear(1e-2, 1e-3, 4), warmup_steps=3), columns


CASES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "a2c": _a2c,
    "ppo": _ppo,
    "impala": _impala,
    "dqn": lambda: (DQN(QNetwork(ACT_DIM, (8,)), lr=linear(1e-2, 1e-3, 4), sync_every=2), DISCRETE),
    "ddqn": lambda: (DDQN(QNetwork(ACT_DIM, (8,)), lr=1e-2, sync_every=3), DISCRETE),
    "ddpg": lambda: (DDPG(Critics(gaussian=False, twins=False), tau=0.1, actor_lr=linear(1e-2, 0.1, 4)), CONTINUOUS),
    "bootstrapped_ddpg": lambda: (BootstrappedDDPG(OneHead(gaussian=False, twins=False), tau=0.1), CONTINUOUS),
    "td3": lambda: (TD3(Critics(gaussian=False, twins=True), tau=0.1), CONTINUOUS),
    "sac": lambda: (SAC(Critics(gaussian=True, twins=True), tau=0.1, alpha=0.2), CONTINUOUS),
    "sac_with_learned_alpha": lambda: (SAC(Critics(gaussian=True, twins=True), alpha_lr=0.1), CONTINUOUS),
    "oac": lambda: (OAC(Critics(gaussian=True, twins=True), tau=0.1), CONTINUOUS),
    "td3_bc": lambda: (TD3BC(TwinActorCritic(ACT_DIM, (8,)), tau=0.1), CONTINUOUS),
    "awac": lambda: (AWAC(GaussianActorCritic(ACT_DIM, (8,)), tau=0.1), CONTINUOUS),
    "tqc": lambda: (TQC(QuantileActorCritic(ACT_DIM, (8,)), tau=0.1), CONTINUOUS),
    "redq": lambda: (REDQ(EnsembleActorCritic(ACT_DIM, (8,), critics=3), tau=0.1, policy_freq=2), CONTINUOUS),
    "cql": lambda: (CQL(Critics(gaussian=True, twins=True), tau=0.1, policy_eval_start=2), CONTINUOUS),
    "cql_with_lagrange": lambda: (CQL(Critics(gaussian=True, twins=True), with_lagrange=True), CONTINUOUS),
    "iql": lambda: (IQL(Critics(gaussian=True, twins=True), 10, linear(1e-2, 1e-3, 4)), CONTINUOUS),
    "offline_q": lambda: (OfflineQ(QNetwork(ACT_DIM, (8,)), sync_every=2), DISCRETE),
    "decision_transformer": _decision_transformer,
}


SLOW = {"sac", "oac", "td3_bc", "tqc"}  # their targets, temperatures and delays are those of others


@pytest.fixture
def _half_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is the same in a program and outside."""
    monkeypatch.setattr("parl_paddle.algorithm.standard_normal_like", lambda like: 0.5 + 0.0 * like.detach())
    monkeypatch.setattr(
        CQL, "_uniform", lambda self, like: paddle.stack([0.1 * i - 0.3 + 0.0 * like for i in range(self.samples)])
    )


@pytest.mark.usefixtures("_half_a_deviation")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_four_runs_are_four_eager_updates_with_all_that_belongs_to_them(name: str) -> None:
    (algorithm, inputs), (twin, _) = CASES[name](), CASES[name]()
    built = Builder(algorithm, inputs)
    twin.set_state(algorithm.get_state())
    tensors = [paddle.to_tensor(array) for array in inputs.values()]
    for _ in range(4):
        expected = [np.nan if figure is None else float(figure) for figure in _flat(twin.learn(*tensors))]
        np.testing.assert_allclose(np.array(built.step(), np.float64), expected, rtol=1e-4, atol=1e-5)
    found, reference = algorithm.get_state(), twin.get_state()
    assert found.counters == reference.counters
    # A step of `learn` is passed its rate, and the optimizer keeps it; a program may have it inside.
    kept = {name for name in reference.arrays if not name.endswith("/rates")}
    assert kept == {name for name in found.arrays if not name.endswith("/rates")}
    for key in kept:
        np.testing.assert_allclose(found.arrays[key], reference.arrays[key], rtol=1e-3, atol=1e-5, err_msg=key)


@pytest.mark.parametrize(
    ("method", "case"),
    [("sample", CASES["sac"]), ("sample_actions", CASES["oac"]), ("predict", CASES["td3"]), ("sample", CASES["iql"])],
    ids=["sac", "oac", "td3", "iql"],
)
def test_continuous_actions_come_out_of_a_program(method: str, case: Any) -> None:
    algorithm, _ = case()
    agent = Builder(algorithm, {"obs": OBS}, method)
    first, second = agent.step()[0], agent.step()[0]
    assert first.shape == (ROWS, ACT_DIM)
    assert np.abs(first).max() <= 1.0
    assert np.array_equal(first, second) == (method == "predict"), "each run draws anew"


def test_a_batch_of_another_size_runs_in_the_same_program() -> None:
    algorithm, inputs = CASES["sac"]()
    agent = Builder(algorithm, inputs)
    fewer = {name: array[:3] for name, array in inputs.items()}
    figures = agent.executor.run(agent.learn_program, feed=fewer, fetch_list=agent.fetch)
    assert np.isfinite(figures).all()


def test_noise_is_standard_normal_inside_and_outside() -> None:
    class Drawing(Agent):
        def build_program(self) -> None:
            self.program = paddle.static.Program()
            with paddle.static.program_guard(self.program):
                self.noise = distributions.standard_normal_like(layers.data("like", [50]))

    like = np.zeros((400, 50), np.float32)
    agent = Drawing(DQN(QNetwork(2)))
    for noise in (
        agent.executor.run(agent.program, feed={"like": like}, fetch_list=[agent.noise])[0],
        distributions.standard_normal_like(paddle.to_tensor(like)).numpy(),
    ):
        assert noise.shape == like.shape
        assert abs(noise.mean()) < 0.05
        assert abs(noise.std() - 1.0) < 0.05
