"""Ready-made models on PaddlePaddle; `parl_core.networks` describes and defines them."""

import sys
from functools import partial, update_wrapper

from paddle import nn

from parl_core import encoders, space_networks
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
    "PolicyNetwork",
    "QNetwork",
    "QuantileNetwork",
    "SharedActorCritic",
    "SimBa",
    "SquashedActorCritic",
    "TwinActorCritic",
    "for_spaces",
]


class MLP(contract.MLP, nn.Sequential):
    _layers = layers


class NatureCNN(contract.NatureCNN, nn.Sequential):
    _layers = layers


class DuelingHead(contract.DuelingHead, nn.Layer):
    _layers = layers


class SimBa(contract.SimBa, nn.Layer):
    _layers, _layer_list, _sequential = layers, nn.LayerList, nn.Sequential


class _ImageEncoder(encoders.ImageEncoder, nn.Sequential):
    _layers = layers


class _SpaceEncoder(encoders.SpaceEncoder, nn.Layer):
    _layers, _layer_list, _image_encoder = layers, nn.LayerList, _ImageEncoder


class _Network(Model):
    _parts = contract.Parts(layers, nn.Sequential, nn.LayerList, MLP, NatureCNN, DuelingHead, SimBa, _SpaceEncoder)


class QNetwork(contract.QNetwork, _Network):
    pass


class QuantileNetwork(contract.QuantileNetwork, _Network):
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


class SharedActorCritic(contract.SharedActorCritic, _Network):
    pass


class AtariActorCritic(contract.AtariActorCritic, SharedActorCritic):
    pass


class PolicyNetwork(contract.PolicyNetwork, _Network):
    pass


for_spaces = update_wrapper(
    partial(space_networks.for_spaces, networks=sys.modules[__name__]), space_networks.for_spaces
)
