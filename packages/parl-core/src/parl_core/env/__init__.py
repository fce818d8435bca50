"""Environments: wrappers on Gymnasium's API, and vectors of environments. Only the submodules import gymnasium."""
