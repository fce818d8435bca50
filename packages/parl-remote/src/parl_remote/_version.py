"""The package version, without imports, so that the build can read it."""

__version__ = "0.1.0"
"""Version of the installed package."""

PARL_CORE = ">=0.1,<0.2"  # as in pyproject.toml
