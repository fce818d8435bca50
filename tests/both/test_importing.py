"""Agents of other programs: their files are read as data, and act as they did."""

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import parl
from parl_core import backends
from parl_core._foreign_weights import read_weights
from parl_core.cli._commands import parl as command
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.importing import import_run, restore
from parl_core.training.trained import Trained

Arrays = dict[str, NDArray[np.float32]]
RNG = np.random.default_rng(0)


def torch_file(arrays: Arrays, folder: str = "archive") -> bytes:
    """Return what torch.save writes of a state_dict, put together by hand."""
    text = lambda value: b"X" + len(value).to_bytes(4, "little") + value.encode()  # noqa: E731
    number = lambda value: b"J" + value.to_bytes(4, "little", signed=True)  # noqa: E731
    program = b"\x80\x02ccollections\nOrderedDict\n)R("
    for key, (name, array) in enumerate(arrays.items()):
        strides = [step // array.itemsize for step in array.strides]
        program += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nFloatStorage\n"
        program += text(str(key)) + text("cpu") + number(array.size) + b"tQ" + number(0)
        program += b"(" + b"".join(map(number, array.shape)) + b"t(" + b"".join(map(number, strides)) + b"t"
        program += b"\x89ccollections\nOrderedDict\n)RtR"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", program + b"u.")
        archive.writestr(f"{folder}/byteorder", "little")
        for key, array in enumerate(arrays.values()):
            archive.writestr(f"{folder}/data/{key}", np.ascontiguousarray(array).tobytes())
    return stream.getvalue()


def paddle_file(arrays: Arrays) -> bytes:
    """Return what paddle.save writes of a state_dict."""
    table = {name: f"linear_{i}.w_0" for i, name in enumerate(arrays)}
    return pickle.dumps({**arrays, "StructuredToParameterName@@": table}, 4)


def sb3_file(path: Path, arrays: Arrays, settings: dict[str, Any]) -> Path:
    """Write a file of Stable-Baselines3; what pickles it holds besides are traps here."""
    told = {"policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": "gASV"}, "gamma": 0.98, **settings}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(told))
        archive.writestr("pytorch_variables.pth", pickle.dumps(Trap()))
        archive.writestr("policy.pth", torch_file(arrays))
        archive.writestr("_stable_baselines3_version", "2.9.2")
    return path


def dense(name: str, inputs: int, outputs: int) -> Arrays:
    scale = 1.0 / np.sqrt(inputs)
    weight = RNG.normal(scale=scale, size=(outputs, inputs)).astype(np.float32)
    return {f"{name}.weight": weight, f"{name}.bias": RNG.normal(size=outputs).astype(np.float32)}


def through(arrays: Arrays, names: list[str], x: Any, act: Any) -> NDArray[Any]:
    """Return what a chain of layers computes, the last one without activation."""
    for name in names[:-1]:
        x = act(x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"])
    result: NDArray[Any] = x @ arrays[f"{names[-1]}.weight"].T + arrays[f"{names[-1]}.bias"]
    return result


def relu(x: Any) -> Any:
    return np.maximum(x, 0.0)


def actions_of(folder: Path, observations: NDArray[Any]) -> NDArray[Any]:
    """Return the actions as the environment takes them."""
    from parl_core.policy import load

    written = CliRunner().invoke(command, ["export", str(folder), "--observations", "20"])
    assert written.exit_code == 0, written.output
    return np.asarray(load(folder / "agent.policy")(observations))


class Trap:
    """Unpickled, it would leave a file."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("trapped"),))


@pytest.fixture
def observations() -> NDArray[np.float32]:
    return RNG.normal(size=(50, 4)).astype(np.float32)


MATRIX = gymnasium.spaces.Box(np.array([[-1, 0], [-3, -2]], np.float32), np.array([[2, 1], [-1, 2]], np.float32))


class Matrix(gymnasium.Env[Any, Any]):
    """Its actions are matrices, each number with bounds of its own."""

    observation_space, action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32), MATRIX

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), 0.0, False, True, {}


gymnasium.register("parl-test/Matrix-v0", lambda **_: Matrix())

PENDULUM = RNG.normal(size=(50, 3)).astype(np.float32)


def test_dqn_of_stable_baselines3_acts_as_before(tmp_path: Path, observations: NDArray[np.float32]) -> None:
    names = ["q_net.q_net.0", "q_net.q_net.2", "q_net.q_net.4"]
    arrays = dense(names[0], 4, 24) | dense(names[1], 24, 16) | dense(names[2], 16, 2)
    target = {name.replace("q_net.", "q_net_target.", 1): array for name, array in arrays.items()}
    file = sb3_file(tmp_path / "m.zip", arrays | target, {"policy_kwargs": {}, "exploration_rate": 0.05})
    result = CliRunner().invoke(command, ["import", str(file), "CartPole-v1", "--run", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "DQN" in result.output
    assert Trained.read(tmp_path / "run").arguments == {"gamma": 0.98}
    expected = through(arrays, names, observations, relu).argmax(1)
    np.testing.assert_array_equal(actions_of(tmp_path / "run", observations), expected)


@pytest.mark.parametrize(("settings", "algorithm"), [({"clip_range": 0.2}, "PPO"), ({}, "A2C")])
def test_gaussian_policies_act_in_the_units_of_the_environment(
    tmp_path: Path, settings: dict[str, Any], algorithm: str
) -> None:
    pi = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
    vf = ["mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"]
    arrays: Arrays = {"log_std": np.full(1, -0.5, np.float32)}
    for names in (pi, vf):
        arrays |= dense(names[0], 3, 8) | dense(names[1], 8, 8) | dense(names[2], 8, 1)
    kwargs = {"activation_fn": "<class 'torch.nn.modules.activation.ELU'>"}
    file = sb3_file(tmp_path / "m.zip", arrays, {**settings, "gae_lambda": 0.9, "policy_kwargs": kwargs})
    found = import_run(file, "Pendulum-v1", tmp_path / "run")
    assert found.algorithm == algorithm
    elu = lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))  # noqa: E731
    expected = through(arrays, pi, PENDULUM, elu).clip(-2.0, 2.0)
    np.testing.assert_allclose(actions_of(tmp_path / "run", PENDULUM), expected, atol=1e-5)
    agent, _ = Trained.read(tmp_path / "run").load(tmp_path / "run" / "best.ckpt")
    np.testing.assert_allclose(agent.alg.model.get_weights()["log_std"], [-0.5 - np.log(2.0)], rtol=1e-6)


def test_a_gaussian_policy_of_a_matrix_acts_as_before(tmp_path: Path) -> None:
    pi, vf = ["mlp_extractor.policy_net.0", "action_net"], ["mlp_extractor.value_net.0", "value_net"]
    arrays = dense(pi[0], 3, 8) | dense(pi[1], 8, 4) | dense(vf[0], 3, 8) | dense(vf[1], 8, 1)
    arrays["log_std"] = np.zeros(4, np.float32)
    file = sb3_file(tmp_path / "m.zip", arrays, {"clip_range": 0.2, "policy_kwargs": {}})
    import_run(file, "parl-test/Matrix-v0", tmp_path / "run")
    expected = through(arrays, pi, PENDULUM, np.tanh).reshape(-1, 2, 2).clip(MATRIX.low, MATRIX.high)
    np.testing.assert_allclose(actions_of(tmp_path / "run", PENDULUM), expected, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG"])
def test_squashed_and_deterministic_policies_act_as_before(tmp_path: Path, algorithm: str) -> None:
    squashed = algorithm == "SAC"
    stem = "actor.latent_pi." if squashed else "actor.mu."
    names = [f"{stem}0", f"{stem}2", "actor.mu" if squashed else "actor.mu.4"]
    arrays = dense(names[0], 3, 12) | dense(names[1], 12, 8) | dense(names[2], 8, 1)
    if squashed:
        arrays |= dense("actor.log_std", 8, 1)
    for i in range(1 if algorithm == "DDPG" else 2):
        arrays |= dense(f"critic.qf{i}.0", 4, 12) | dense(f"critic.qf{i}.2", 12, 8) | dense(f"critic.qf{i}.4", 8, 1)
    found = import_run(sb3_file(tmp_path / "m.zip", arrays, {}), "Pendulum-v1", tmp_path / "run")
    assert found.algorithm == algorithm
    expected = 2.0 * np.tanh(through(arrays, names, PENDULUM, relu))
    np.testing.assert_allclose(actions_of(tmp_path / "run", PENDULUM), expected, atol=1e-5)


def test_checkpoints_of_parl_2_fit_models_like_those_of_its_examples(
    tmp_path: Path, observations: NDArray[np.float32]
) -> None:
    names = ["fc1", "fc2", "fc3"]
    arrays = dense("fc1", 4, 128) | dense("fc2", 128, 64) | dense("fc3", 64, 2)
    (tmp_path / "torch.ckpt").write_bytes(torch_file(arrays))
    swapped = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
    (tmp_path / "paddle.ckpt").write_bytes(paddle_file(swapped))
    expected = through(arrays, names, observations, relu).argmax(1)
    for framework in ("torch", "paddle"):
        run = tmp_path / framework
        import_run(tmp_path / f"{framework}.ckpt", "CartPole-v1", run, algorithm="DQN")
        np.testing.assert_array_equal(actions_of(run, observations), expected)


def test_actors_and_critics_of_parl_2_find_their_places(tmp_path: Path) -> None:
    sac = dense("actor_model.l1", 3, 16) | dense("actor_model.l2", 16, 16)
    sac |= dense("actor_model.mean_linear", 16, 1) | dense("actor_model.std_linear", 16, 1)
    for i in (1, 4):
        sac |= dense(f"critic_model.l{i}", 4, 16) | dense(f"critic_model.l{i + 1}", 16, 16)
        sac |= dense(f"critic_model.l{i + 2}", 16, 1)
    ppo = {"fc_pi_std": np.full((1, 1), -1.0, np.float32)}
    for part in ("v", "pi"):
        ppo |= dense(f"fc_{part}1", 3, 8) | dense(f"fc_{part}2", 8, 8) | dense(f"fc_{part}3", 8, 1)
    for algorithm, arrays, names, squash in (
        ("SAC", sac, ["actor_model.l1", "actor_model.l2", "actor_model.mean_linear"], np.tanh),
        ("PPO", ppo, ["fc_pi1", "fc_pi2", "fc_pi3"], lambda x: x.clip(-1.0, 1.0)),
    ):
        (tmp_path / algorithm).write_bytes(torch_file(arrays))
        run = tmp_path / f"run-{algorithm}"
        import_run(tmp_path / algorithm, "Pendulum-v1", run, algorithm=algorithm)
        act = relu if algorithm == "SAC" else np.tanh
        expected = 2.0 * squash(through(arrays, names, PENDULUM, act))
        np.testing.assert_allclose(actions_of(run, PENDULUM), expected, atol=1e-5)


def test_a_model_of_ones_own_takes_checkpoints_of_both_frameworks(
    tmp_path: Path, observations: NDArray[np.float32]
) -> None:
    class Own(parl.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table = parl.layers.embedding((4, 4))
            self.fc1 = parl.layers.fc(6, act="relu")
            self.fc2 = parl.layers.fc(6)  # square: its sides cannot tell which way round it lies
            self.fc3 = parl.layers.fc(2)

        def value(self, obs: Any) -> Any:
            return self.fc3(self.fc2(self.fc1(obs)))

    arrays = dense("fc1", 4, 6) | dense("fc2", 6, 6) | dense("fc3", 6, 2)
    table = {"table.weight": RNG.normal(size=(4, 4)).astype(np.float32)}
    hidden = relu(observations @ arrays["fc1.weight"].T + arrays["fc1.bias"])
    expected = through(arrays, ["fc2", "fc3"], hidden, lambda x: x)
    (tmp_path / "torch.ckpt").write_bytes(torch_file(arrays | table))
    swapped = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
    (tmp_path / "paddle.ckpt").write_bytes(paddle_file(swapped | table))
    for framework in ("torch", "paddle"):
        agent = parl.Agent(parl.algorithms.DQN(Own()))
        restore(agent, tmp_path / f"{framework}.ckpt")
        np.testing.assert_allclose(agent.run(agent.alg.model.value, observations), expected, atol=1e-5)
        found = agent.run(agent.alg.target_model.value, observations)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("write", [torch_file, paddle_file])
def test_a_checkpoint_of_a_part_of_the_model_is_loaded_into_that_part(
    tmp_path: Path, observations: NDArray[np.float32], write: Any
) -> None:
    class Part(parl.Model):
        def __init__(self) -> None:
            super().__init__()
            self.fc = parl.layers.fc(2)

        def value(self, obs: Any) -> Any:
            return self.fc(obs)

    class Whole(parl.Model):
        def __init__(self) -> None:
            super().__init__()
            self.actor_model, self.other = Part(), Part()

        def value(self, obs: Any) -> Any:
            return self.actor_model.value(obs) + 0.0 * self.other.value(obs)

    arrays = dense("fc", 4, 2)
    stored = arrays
    if write is paddle_file:
        stored = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
    (tmp_path / "actor.ckpt").write_bytes(write(stored))
    agent = parl.Agent(parl.algorithms.DQN(Whole()))
    agent.run(agent.alg.model.value, observations)
    restore(agent, tmp_path / "actor.ckpt", agent.alg.model.actor_model)
    expected = through(arrays, ["fc"], observations, lambda x: x)
    np.testing.assert_allclose(agent.run(agent.alg.model.value, observations), expected, atol=1e-5)
    np.testing.assert_allclose(agent.run(agent.alg.target_model.value, observations), expected, atol=1e-5)


def test_what_the_framework_itself_saves_is_read_and_restore_says_how(tmp_path: Path) -> None:
    name = backends.current().name
    if name == "torch":
        import torch

        layer: Any = torch.nn.Linear(3, 5).double()
        kept = {"w": layer.weight, "half": layer.weight[::2, 1:].detach().half(), "steps": torch.tensor(7)}
        torch.save(kept | {"b": torch.arange(4.0).bfloat16()}, tmp_path / "file")
        expected = {key: tensor.detach().numpy() for key, tensor in kept.items()} | {"b": np.arange(4.0, dtype="f4")}
    else:
        import paddle

        layer = paddle.nn.Linear(3, 5)
        paddle.save(layer.state_dict(), str(tmp_path / "file"))
        expected = {key: tensor.numpy() for key, tensor in layer.state_dict().items()}
    agent = parl.Agent(parl.algorithms.DQN(parl.networks.QNetwork(act_dim=2)))
    with pytest.raises(CheckpointError, match=r"file is a pickle or .*PARL 2.x.*\.restore\(agent, '.*file'\)"):
        agent.restore(tmp_path / "file")
    found = read_weights(tmp_path / "file")
    assert found.framework == name
    assert set(found.arrays) == set(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(found.arrays[key], array)
        assert found.arrays[key].dtype == array.dtype


@pytest.mark.parametrize("kind", ["paddle", "torch", "sb3", "statistics"])
def test_a_file_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    trap, file, more = pickle.dumps({"fc1.weight": Trap()}), tmp_path / "m", []
    if kind == "paddle":
        file.write_bytes(trap)
    elif kind == "statistics":
        arrays = dense("q_net.q_net.0", 4, 8) | dense("q_net.q_net.2", 8, 2)
        sb3_file(file, arrays, {})
        Path("s.pkl").write_bytes(trap)
        more = ["--normalization", "s.pkl"]
    else:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("archive/data.pkl", trap)
        if kind == "sb3":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("data", "{}")
                archive.writestr("policy.pth", stream.getvalue())
        else:
            file.write_bytes(stream.getvalue())
    result = CliRunner().invoke(command, ["import", str(file), "CartPole-v1", "--algorithm", "dqn", *more])
    assert result.exit_code == 1
    assert "could run code" in result.output
    assert not Path("trapped").exists()
    assert not list(Path("runs").glob("*/best.ckpt"))


def test_a_pickle_cannot_change_what_the_names_of_the_next_one_mean(tmp_path: Path) -> None:
    hostile = b"\x80\x02ctorch\nFloatStorage\n}X\x04\x00\x00\x00nameX\x0b\x00\x00\x00LongStoragesb."
    with zipfile.ZipFile(tmp_path / "m", "w") as archive:
        archive.writestr("archive/data.pkl", hostile)
    with pytest.raises(CheckpointError, match="sets a state of FloatStorage"):
        read_weights(tmp_path / "m")
    arrays = dense("fc1", 2, 2)
    (tmp_path / "m").write_bytes(torch_file(arrays))
    np.testing.assert_array_equal(read_weights(tmp_path / "m").arrays["fc1.weight"], arrays["fc1.weight"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"not a checkpoint", "damaged"),
        (pickle.dumps([1, 2]), "not a dictionary"),
        (pickle.dumps({"w": 3}), "not an array"),
        (pickle.dumps({"w": np.array([None])}), "not of numbers"),
        (pickle.dumps(OrderedDict(w=np.ones(1))), "no layers"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_words(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        import_run(tmp_path / "m", "CartPole-v1", tmp_path / "run", algorithm="DQN")
    assert not (tmp_path / "run").exists()


def images(name: str) -> Arrays:
    convolution = {f"{name}.cnn.0.weight": RNG.normal(size=(32, 3, 8, 8)).astype(np.float32)}
    return convolution | {f"{name}.cnn.0.bias": np.zeros(32, np.float32)} | dense(f"{name}.linear.0", 32, 512)


def test_images_that_are_not_scaled_are_refused(tmp_path: Path) -> None:
    arrays = images("q_net.features_extractor") | dense("q_net.q_net.0", 512, 3)
    file = sb3_file(tmp_path / "m.zip", arrays, {"policy_kwargs": {"normalize_images": False}})
    with pytest.raises(CheckpointError, match="normalize_images=False"):
        import_run(file, "CartPole-v1", tmp_path / "run")


def test_values_with_layers_for_images_of_their_own_are_refused(tmp_path: Path) -> None:
    shared, own = images("features_extractor"), images("vf_features_extractor")
    arrays = shared | {f"pi_{name}": array for name, array in shared.items()} | own
    arrays |= dense("action_net", 512, 3) | dense("value_net", 512, 1)
    file = sb3_file(tmp_path / "m.zip", arrays, {"clip_range": 0.2})
    with pytest.raises(CheckpointError, match="share_features_extractor=False"):
        import_run(file, "CartPole-v1", tmp_path / "run")


def test_sac_of_another_form_is_refused_in_its_own_terms(tmp_path: Path) -> None:
    actor = dense("actor.latent_pi.0", 3, 8) | dense("actor.mu.0", 8, 1)
    critics = dense("critic.qf0.0", 4, 8) | dense("critic.qf0.2", 8, 1)
    twins = critics | {name.replace("qf0", "qf1"): array for name, array in critics.items()}
    noise = {"actor.log_std": np.zeros((8, 1), np.float32)}
    file = sb3_file(tmp_path / "m.zip", actor | noise | twins, {"use_sde": True, "policy_kwargs": {"use_sde": True}})
    with pytest.raises(CheckpointError, match="use_sde=True"):
        import_run(file, "Pendulum-v1", tmp_path / "run")
    actor = dense("actor.latent_pi.0", 3, 8) | dense("actor.mu", 8, 1) | dense("actor.log_std", 8, 1)
    file = sb3_file(tmp_path / "m.zip", actor | critics, {"policy_kwargs": {"n_critics": 1}})
    with pytest.raises(CheckpointError, match=r"it has 1 critic \(n_critics\), and SAC has 2"):
        import_run(file, "Pendulum-v1", tmp_path / "run")


def test_what_has_no_counterpart_is_named(tmp_path: Path) -> None:
    arrays = dense("q_net.q_net.0", 4, 8) | dense("q_net.q_net.2", 8, 2)
    file = sb3_file(tmp_path / "m.zip", arrays | dense("q_net.extra", 2, 2), {})
    with pytest.raises(CheckpointError, match=r"q_net\.extra\.weight"):
        import_run(file, "CartPole-v1", tmp_path / "run")
    file = sb3_file(tmp_path / "m.zip", arrays, {})
    with pytest.raises(CheckpointError, match=r"do not fit|shape"):
        import_run(file, "Acrobot-v1", tmp_path / "run")
    with pytest.raises(HyperparameterError, match="trained by DQN, not by PPO"):
        import_run(file, "CartPole-v1", tmp_path / "run", algorithm="PPO")
    (tmp_path / "old").write_bytes(torch_file(arrays))
    with pytest.raises(HyperparameterError, match="give --algorithm"):
        import_run(tmp_path / "old", "CartPole-v1", tmp_path / "run")
    kwargs = {"activation_fn": "<class 'torch.nn.modules.activation.Mish'>"}
    file = sb3_file(tmp_path / "m.zip", arrays, {"policy_kwargs": kwargs})
    with pytest.raises(CheckpointError, match="Mish"):
        import_run(file, "CartPole-v1", tmp_path / "run")
    assert not (tmp_path / "run").exists()
