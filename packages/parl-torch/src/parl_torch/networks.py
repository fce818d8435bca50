"""Ready-made models on PyTorch; `parl_core.networks` describes and defines them."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial, update_wrapper
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from parl_core import _encoders, recurrent, space_networks, team_networks
from parl_core import networks as contract
from parl_torch import layers
from parl_torch._graphs import TORCH
from parl_torch._gru import GRULayer
from parl_torch._rows import ACTIVATIONS, Shape, many_rows
from parl_torch._tensors import is_followed, orthogonal_, with_channels_last
from parl_torch.model import Model

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


_MANY_ROWS = 1024
"""Rows from which layers that several agents share have a gradient of their own."""

_NARROW = 16
"""Number of outputs below which BLAS is slower for the gradients of all agents' weights at once."""


def _divided(images: Tensor, span: float) -> Tensor:
    """Return images divided by a number, for learning with the channels of each pixel side by side in memory.

    Convolutions on the CPU keep this layout in their outputs. Their gradients are then computed without reordering,
    which other layouts need; a forward pass alone takes the same time.
    """
    if is_followed() or not _is_in_memory(images):
        return images if span == 1.0 else images / span
    if torch.is_grad_enabled() and not images.requires_grad:
        images = with_channels_last(images)
    if images.is_floating_point():
        return images if span == 1.0 else images / span
    return images.to(torch.get_default_dtype()).div_(span)  # in half of the memory


class MLP(contract.MLP, nn.Sequential):
    _layers = layers


class NatureCNN(contract.NatureCNN, nn.Sequential):
    _layers, _divided = layers, staticmethod(_divided)


class CriticTrunk(contract.CriticTrunk, nn.Sequential):
    _layers, _dropout = layers, nn.Dropout


class BatchNormMLP(contract.BatchNormMLP, nn.Sequential):
    _layers = layers


class DuelingHead(contract.DuelingHead, nn.Module):
    _layers = layers


class SimBa(contract.SimBa, nn.Module):
    _layers, _layer_list, _sequential = layers, nn.ModuleList, nn.Sequential


class _ImageEncoder(_encoders.ImageEncoder, nn.Sequential):
    _layers, _divided = layers, staticmethod(_divided)


class _SpaceEncoder(_encoders.SpaceEncoder, nn.Module):
    _layers, _layer_list, _image_encoder = layers, nn.ModuleList, _ImageEncoder


class _Recurrent(nn.Module):
    _layers = layers

    cell: Any

    def _steps_with_any(self, begins: Tensor) -> Sequence[int]:
        found: list[int] = begins.bool().any(0).nonzero().flatten().tolist()
        return found


class GRU(recurrent.GRU, _Recurrent):
    def _made_cell(self, size: int) -> nn.RNNBase:
        return _orthogonal(GRULayer(size))

    def _run(self, steps: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs, hidden = self.cell(steps, parts[0].unsqueeze(0).contiguous())
        return outputs, (hidden[0],)


class LSTM(recurrent.LSTM, _Recurrent):
    def _made_cell(self, size: int) -> nn.RNNBase:
        return _orthogonal(nn.LSTM(size, size, batch_first=True))

    def _run(self, steps: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs, after = self.cell(steps, tuple(part.unsqueeze(0).contiguous() for part in parts))
        return outputs, tuple(part[0] for part in after)


def _orthogonal(cell: nn.RNNBase) -> nn.RNNBase:
    for name, parameter in cell.named_parameters():
        if name.startswith("weight"):
            orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
    return cell


def _constant(array: NDArray[Any], like: Tensor) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)


def _is_in_memory(tensor: Tensor) -> bool:
    """Return whether a tensor holds its values in memory; a subclass may represent values that are stored elsewhere."""
    return type(tensor) is Tensor and tensor.device.type == "cpu"


def _is_array(tensor: Tensor) -> bool:
    """Return whether a tensor holds floats in memory."""
    return _is_in_memory(tensor) and tensor.dtype in (torch.float32, torch.float64)


class _Attention(recurrent._Attention, nn.Module):
    _layers = layers


class CausalTransformer(recurrent.CausalTransformer, nn.Module):
    _layers, _layer_list, _attention = layers, nn.ModuleList, _Attention

    _constant = staticmethod(_constant)


def _layers_of(part: nn.Module) -> Iterator[nn.Module | None]:
    """Yield the layers of containers in turn, faster than `modules()` does; None for one with hooks."""
    if any(getattr(part, name) for name in TORCH.hooks):
        yield None
    elif type(part) in (nn.Sequential, MLP):
        for child in part._modules.values():  # unlike `children()`, with a layer as often as it is used
            yield from () if child is None else _layers_of(child)
    else:
        yield part


class PerAgent(team_networks.PerAgent, nn.Module):
    _layers, _layer_list, _constant = layers, nn.ModuleList, staticmethod(_constant)

    def _of_shared(self, features: Sequence[Tensor]) -> Tensor | None:
        each = features[0]
        if each.dim() != 3 or each.shape[1] != self._agents or is_followed():  # traces are for any number of rows
            return None
        if each.shape[0] * self._agents < _MANY_ROWS or not all(map(_is_array, features)):
            return None
        (chain,) = self._chains()
        if len(chain) == 1 and len(features) == 1:  # PyTorch's layer is faster alone
            return None
        if not chain or not all(layer.activation in ACTIVATIONS for layer in chain):
            return None
        shape = Shape([layer.activation for layer in chain], self._agents, self._ids and self._agents > 1)
        return many_rows(shape, features, [part for layer in chain for part in (layer.weight, layer.bias)])

    def _chains(self) -> list[list[Any]]:
        """Return the layers of each part; an empty list for a part that is not a chain of layers without hooks."""
        chains = [list(_layers_of(part)) for part in self.parts]
        for chain in chains:
            if not all(type(layer) is layers.Fc and layer.shaped and layer.bias is not None for layer in chain):
                chain.clear()
        return [[] for _ in chains] if any(TORCH.global_hooks) else chains

    def _at_once(self, rows: Tensor) -> Tensor | None:
        chains = self._chains()
        if not all(chains):
            return None
        if len({tuple((layer.weight.shape, layer.activation) for layer in chain) for chain in chains}) > 1:
            return None
        rows = rows.expand(self._agents, -1, -1) if rows.dim() == 2 else rows
        for same in zip(*chains, strict=True):
            if len(same[0].weight) < _NARROW:
                pairs = zip(rows.unbind(0), same, strict=True)
                rows = torch.stack([F.linear(own, layer.weight, layer.bias) for own, layer in pairs])
            else:
                weight = torch.stack([layer.weight for layer in same]).transpose(1, 2)
                rows = torch.baddbmm(torch.stack([layer.bias for layer in same]).unsqueeze(1), rows, weight)
            rows = rows if same[0].act is None else same[0].act(rows)
        return rows


class PerAgentMemory(team_networks.PerAgentMemory, PerAgent):
    pass


class _Network(Model):
    _parts = contract.Parts(
        layers,
        nn.Sequential,
        nn.ModuleList,
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
