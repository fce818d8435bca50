"""Ready-made models on PaddlePaddle; `parl_core.networks` describes and defines them."""

import sys
from collections.abc import Sequence
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import Tensor, nn

from parl_core import _encoders, recurrent, space_networks, team_networks
from parl_core import networks as contract
from parl_paddle import layers
from parl_paddle._static_graphs import in_program
from parl_paddle.model import Model

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "ActorCritic",
    "AtariActorCritic",
    "AtariQNetwork",
    "BatchNormActorCritic",
    "BatchNormMLP",
    "CategoricalNetwork",
    "CausalTransformer",
    "CentralActorCritic",
    "CounterfactualActorCritic",
    "CriticTrunk",
    "DeterministicActorCritic",
    "DiscreteActorCritic",
    "DuelingHead",
    "EnsembleActorCritic",
    "GaussianActorCritic",
    "ImplicitActorCritic",
    "NatureCNN",
    "NormalisedTwinActorCritic",
    "NoveltyNetwork",
    "PerAgent",
    "PerAgentMemory",
    "PolicyNetwork",
    "QMixer",
    "QNetwork",
    "QuantileActorCritic",
    "QuantileNetwork",
    "RecurrentActorCritic",
    "RecurrentCentralActorCritic",
    "RecurrentCounterfactualActorCritic",
    "RecurrentQNetwork",
    "RecurrentTeamQNetwork",
    "SharedActorCritic",
    "SimBa",
    "SquashedActorCritic",
    "TeamActorCritic",
    "TeamQNetwork",
    "TwinActorCritic",
    "VDNMixer",
    "for_spaces",
    "for_team",
]

_CLOSED = -80.0
"""Input of a gate below which it is 0 for all purposes, and above which float32 still has its inverse."""


class MLP(contract.MLP, nn.Sequential):
    _layers = layers


class NatureCNN(contract.NatureCNN, nn.Sequential):
    _layers = layers


class CriticTrunk(contract.CriticTrunk, nn.Sequential):
    _layers, _dropout = layers, nn.Dropout


class BatchNormMLP(contract.BatchNormMLP, nn.Sequential):
    _layers = layers


class DuelingHead(contract.DuelingHead, nn.Layer):
    _layers = layers


class SimBa(contract.SimBa, nn.Layer):
    _layers, _layer_list, _sequential = layers, nn.LayerList, nn.Sequential


class _ImageEncoder(_encoders.ImageEncoder, nn.Sequential):
    _layers = layers


class _SpaceEncoder(_encoders.SpaceEncoder, nn.Layer):
    _layers, _layer_list, _image_encoder = layers, nn.LayerList, _ImageEncoder


class _Recurrent(nn.Layer):
    _layers = layers

    cell: Any

    def _steps_with_any(self, begins: Tensor) -> Sequence[int]:
        found: list[int] = np.flatnonzero(np.asarray(begins).any(axis=0)).tolist()
        return found


class _Cell(nn.Layer):
    """A recurrent layer of paddle that can be copied, pickled and exported, because its dropout state has a place."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size, **_start())  # type: ignore[arg-type]  # of paddle's layer beside it
        self.register_buffer("_dropout_state", paddle.zeros([1], "uint8"), persistable=False)


class _GRUCell(_Cell, nn.GRU):
    pass


class _LSTMCell(_Cell, nn.LSTM):
    pass


class GRU(recurrent.GRU, _Recurrent):
    def _made_cell(self, size: int) -> nn.Layer:
        return _GRUCell(size)

    def _run(self, steps: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs, hidden = self.cell(steps, parts[0].unsqueeze(0))
        if self._has_closed_reset(steps, parts[0], outputs):
            outputs = self._step_by_step(steps, parts[0])
            return outputs, (outputs[:, -1],)
        return outputs, (hidden[0],)

    def _has_closed_reset(self, steps: Tensor, hidden: Tensor, outputs: Tensor) -> bool:
        """Return whether a gradient is wanted that paddle's kernel for the CPU would compute as NaN.

        It divides by the reset gate, which is 0 in float32 from -88 on (3.3.1).
        """
        if in_program() or outputs.stop_gradient or not outputs.place.is_cpu_place():
            return False
        size, cell = self.size, self.cell
        with paddle.no_grad():
            from_steps, from_hidden = cell.weight_ih_l0[:size], cell.weight_hh_l0[:size]
            bias = cell.bias_ih_l0[:size] + cell.bias_hh_l0[:size]
            # outputs lie in [-1, 1], or among the numbers of the state: a bound is mostly enough, and costs less
            of_steps = steps.abs().max() * from_steps.abs().sum(1).max()
            of_hidden = hidden.abs().max().clip(min=1.0) * from_hidden.abs().sum(1).max()
            if of_steps + of_hidden + bias.abs().max() < -_CLOSED:
                return False
            before = paddle.concat([hidden.unsqueeze(1), outputs[:, :-1]], axis=1)
            return bool((steps @ from_steps.t() + before @ from_hidden.t() + bias).min() < _CLOSED)

    def _step_by_step(self, steps: Tensor, hidden: Tensor) -> Tensor:
        """Return the outputs `[rows, T, size]`, whose gradients are those of single operations."""
        cell = self.cell
        inputs = steps @ cell.weight_ih_l0.t() + cell.bias_ih_l0
        outputs = []
        for t in range(steps.shape[1]):
            of_reset, of_update, of_new = paddle.split(inputs[:, t], 3, axis=1)
            before = hidden @ cell.weight_hh_l0.t() + cell.bias_hh_l0
            from_reset, from_update, from_new = paddle.split(before, 3, axis=1)
            reset, update = F.sigmoid(of_reset + from_reset), F.sigmoid(of_update + from_update)
            new = paddle.tanh(of_new + reset * from_new)
            hidden = new + update * (hidden - new)
            outputs.append(hidden)
        return paddle.stack(outputs, axis=1)


class LSTM(recurrent.LSTM, _Recurrent):
    def _made_cell(self, size: int) -> nn.Layer:
        return _LSTMCell(size)

    def _run(self, steps: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs, after = self.cell(steps, tuple(part.unsqueeze(0) for part in parts))
        return outputs, tuple(part[0] for part in after)


def _start() -> dict[str, Any]:
    names = dict.fromkeys(("weight_ih_attr", "weight_hh_attr"), nn.initializer.Orthogonal())
    return names | dict.fromkeys(("bias_ih_attr", "bias_hh_attr"), nn.initializer.Constant(0.0))


def _constant(array: NDArray[Any], like: Tensor) -> Tensor:
    tensor = paddle.to_tensor(array, place=like.place)
    return tensor.astype(like.dtype) if tensor.is_floating_point() else tensor


class _Attention(recurrent._Attention, nn.Layer):
    _layers = layers


class CausalTransformer(recurrent.CausalTransformer, nn.Layer):
    _layers, _layer_list, _attention = layers, nn.LayerList, _Attention

    _constant = staticmethod(_constant)


class PerAgent(team_networks.PerAgent, nn.Layer):
    _layers, _layer_list, _constant = layers, nn.LayerList, staticmethod(_constant)


class PerAgentMemory(team_networks.PerAgentMemory, PerAgent):
    pass


class _Network(Model):
    _parts = contract.Parts(
        layers,
        nn.Sequential,
        nn.LayerList,
        MLP,
        NatureCNN,
        CriticTrunk,
        BatchNormMLP,
        DuelingHead,
        SimBa,
        _SpaceEncoder,
        {"gru": GRU, "lstm": LSTM, "transformer": CausalTransformer},
    )


class QNetwork(contract.QNetwork, _Network):
    pass


class QuantileNetwork(contract.QuantileNetwork, _Network):
    pass


class CategoricalNetwork(contract.CategoricalNetwork, _Network):
    pass


class AtariQNetwork(contract.AtariQNetwork, QNetwork):
    pass


class ActorCritic(contract.ActorCritic, _Network):
    pass


class DeterministicActorCritic(contract.DeterministicActorCritic, _Network):
    pass


class TwinActorCritic(contract.TwinActorCritic, _Network):
    pass


class DiscreteActorCritic(contract.DiscreteActorCritic, _Network):
    pass


class NormalisedTwinActorCritic(contract.NormalisedTwinActorCritic, TwinActorCritic):
    pass


class SquashedActorCritic(contract.SquashedActorCritic, _Network):
    pass


class BatchNormActorCritic(contract.BatchNormActorCritic, SquashedActorCritic):
    pass


class QuantileActorCritic(contract.QuantileActorCritic, SquashedActorCritic):
    pass


class EnsembleActorCritic(contract.EnsembleActorCritic, SquashedActorCritic):
    pass


class GaussianActorCritic(contract.GaussianActorCritic, SquashedActorCritic):
    pass


class NoveltyNetwork(contract.NoveltyNetwork, _Network):
    pass


class ImplicitActorCritic(contract.ImplicitActorCritic, _Network):
    pass


class SharedActorCritic(contract.SharedActorCritic, _Network):
    pass


class AtariActorCritic(contract.AtariActorCritic, SharedActorCritic):
    pass


class RecurrentActorCritic(contract.RecurrentActorCritic, _Network):
    pass


class RecurrentQNetwork(contract.RecurrentQNetwork, _Network):
    pass


class PolicyNetwork(contract.PolicyNetwork, _Network):
    pass


class _TeamNetwork(_Network):
    _per_agent: Any = PerAgent
    _per_agent_memory: Any = PerAgentMemory


class TeamQNetwork(team_networks.TeamQNetwork, _TeamNetwork):
    pass


class RecurrentTeamQNetwork(team_networks.RecurrentTeamQNetwork, _TeamNetwork):
    pass


class QMixer(team_networks.QMixer, _TeamNetwork):
    pass


class VDNMixer(team_networks.VDNMixer, _TeamNetwork):
    pass


class TeamActorCritic(team_networks.TeamActorCritic, _TeamNetwork):
    pass


class CentralActorCritic(team_networks.CentralActorCritic, _TeamNetwork):
    pass


class RecurrentCentralActorCritic(team_networks.RecurrentCentralActorCritic, _TeamNetwork):
    pass


class CounterfactualActorCritic(team_networks.CounterfactualActorCritic, _TeamNetwork):
    pass


class RecurrentCounterfactualActorCritic(team_networks.RecurrentCounterfactualActorCritic, _TeamNetwork):
    pass


for_spaces = update_wrapper(
    partial(space_networks.for_spaces, networks=sys.modules[__name__]), space_networks.for_spaces
)
"""Function that builds networks of this backend for spaces, as `parl_core.space_networks.for_spaces` without
`networks`."""
for_team = update_wrapper(partial(team_networks.for_team, networks=sys.modules[__name__]), team_networks.for_team)
"""Function that builds networks of this backend for teams, as `parl_core.team_networks.for_team` without `networks`."""
