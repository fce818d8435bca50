"""`parl.utils.utils`: the check that algorithms of PARL 2.x make of a model."""

from parl_core.checks import check_model_method

__all__ = ["check_model_method"]
