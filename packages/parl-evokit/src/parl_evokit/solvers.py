"""Which class is which algorithm; a class's module is read when it is first used."""

import importlib

from parl_evokit.config import SolverKind
from parl_evokit.strategy import Strategy

__all__ = ["solver_class"]

_CLASSES = {
    SolverKind.BASIC_ES: ("openai_es", "ES"),
    SolverKind.CMA_ES: ("cma_es", "CMAES"),
    SolverKind.SEP_CMA_ES: ("sep_cma_es", "SepCMAES"),
    SolverKind.GA: ("genetic", "GA"),
    SolverKind.PGPE: ("pgpe", "PGPE"),
    SolverKind.SNES: ("snes", "SNES"),
    SolverKind.ARS: ("ars", "ARS"),
}


def solver_class(kind: SolverKind) -> type[Strategy]:
    """The class of an algorithm."""
    module, name = _CLASSES[kind]
    found: type[Strategy] = getattr(importlib.import_module(f"parl_evokit.{module}"), name)
    return found
