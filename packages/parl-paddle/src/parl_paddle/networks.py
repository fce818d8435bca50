"""Ready-made models on PaddlePaddle; `parl_core.networks` describes and defines them."""

from paddle import nn

from parl_core import networks as contract
from parl_paddle import layers
from parl_paddle.model import Model

__all__ = [
    "MLP",
    "ActorCritic",
    "AtariActorCritic",
    "AtariQNetwork",
    "DeterministicActorCritic",
    "DuelingHead",
    "ImplicitActorCritic",
    "NatureCNN",
    "QNetwork",
    "SquashedActorCritic",
    "TwinActorCritic",
]


class MLP(contract.MLP, nn.Sequential):
    _layers = layers


class NatureCNN(contract.NatureCNN, nn.Sequential):
    _layers = layers


class DuelingHead(contract.DuelingHead, nn.Layer):
    _layers = layers


class _Network(Model):
    _parts = contract.Parts(layers, nn.Sequential, nn.LayerList, MLP, NatureCNN, DuelingHead)


class QNetwork(contract.QNetwork, _Network):
    pass


class AtariQNetwork(contract.AtariQNetwork, QNetwork):
    pass


class ActorCritic(contract.ActorCritic, _Network):
    pass


class DeterministicActorCritic(contract.DeterministicActorCritic, _Network):
    pass


class TwinActorCritic(contract.TwinActorCritic, _Network):
    pass


class SquashedActorCritic(contract.SquashedActorCritic, _Network):
    pass


class ImplicitActorCritic(contract.ImplicitActorCritic, _Network):
    pass


class AtariActorCritic(contract.AtariActorCritic, _Network):
    pass
