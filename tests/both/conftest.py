"""The backend in use, imported once before tests in which a warning is an error."""

import warnings

import parl

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # paddle warns when it is imported without ccache
    _ = parl.Model
