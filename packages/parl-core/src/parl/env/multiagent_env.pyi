"""`MAenv`, defined in `parl_core.env.multi_agent`."""

from parl_core.env.multi_agent import MAenv, ParallelAgents

__all__ = ["MAenv", "ParallelAgents"]
