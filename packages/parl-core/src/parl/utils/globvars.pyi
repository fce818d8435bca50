"""`global_config`, defined in `parl_core._global_config`."""

from parl_core._global_config import GlobalConfig, global_config

__all__ = ["GlobalConfig", "global_config"]
