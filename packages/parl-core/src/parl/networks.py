"""`parl.networks`: ready-made models of the backend in use, such as `parl.networks.ActorCritic(act_dim=2)`."""

from typing import TYPE_CHECKING, Any

from parl._names import names_of, offered

if TYPE_CHECKING:
    from parl_core.networks import MLP as MLP
    from parl_core.networks import ActorCritic as ActorCritic
    from parl_core.networks import AtariActorCritic as AtariActorCritic
    from parl_core.networks import AtariQNetwork as AtariQNetwork
    from parl_core.networks import BatchNormActorCritic as BatchNormActorCritic
    from parl_core.networks import BatchNormMLP as BatchNormMLP
    from parl_core.networks import CategoricalNetwork as CategoricalNetwork
    from parl_core.networks import CriticTrunk as CriticTrunk
    from parl_core.networks import DeterministicActorCritic as DeterministicActorCritic
    from parl_core.networks import DiscreteActorCritic as DiscreteActorCritic
    from parl_core.networks import DuelingHead as DuelingHead
    from parl_core.networks import EnsembleActorCritic as EnsembleActorCritic
    from parl_core.networks import GaussianActorCritic as GaussianActorCritic
    from parl_core.networks import ImplicitActorCritic as ImplicitActorCritic
    from parl_core.networks import NatureCNN as NatureCNN
    from parl_core.networks import NormalisedTwinActorCritic as NormalisedTwinActorCritic
    from parl_core.networks import NoveltyNetwork as NoveltyNetwork
    from parl_core.networks import PolicyNetwork as PolicyNetwork
    from parl_core.networks import QNetwork as QNetwork
    from parl_core.networks import QuantileActorCritic as QuantileActorCritic
    from parl_core.networks import QuantileNetwork as QuantileNetwork
    from parl_core.networks import SharedActorCritic as SharedActorCritic
    from parl_core.networks import SimBa as SimBa
    from parl_core.networks import SquashedActorCritic as SquashedActorCritic
    from parl_core.networks import TwinActorCritic as TwinActorCritic
    from parl_core.space_networks import for_spaces as for_spaces
    from parl_core.team_networks import CentralActorCritic as CentralActorCritic
    from parl_core.team_networks import CounterfactualActorCritic as CounterfactualActorCritic
    from parl_core.team_networks import PerAgent as PerAgent
    from parl_core.team_networks import PerAgentMemory as PerAgentMemory
    from parl_core.team_networks import QMixer as QMixer
    from parl_core.team_networks import RecurrentCentralActorCritic as RecurrentCentralActorCritic
    from parl_core.team_networks import RecurrentCounterfactualActorCritic as RecurrentCounterfactualActorCritic
    from parl_core.team_networks import RecurrentTeamQNetwork as RecurrentTeamQNetwork
    from parl_core.team_networks import TeamActorCritic as TeamActorCritic
    from parl_core.team_networks import TeamQNetwork as TeamQNetwork
    from parl_core.team_networks import VDNMixer as VDNMixer
    from parl_core.team_networks import for_team as for_team


def __getattr__(name: str) -> Any:
    return offered("networks", name)


def __dir__() -> list[str]:
    return names_of("networks")
