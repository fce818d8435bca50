"""Models that the package brings itself, by their names: what a solver's file may remember, since no code is in a name.

cartpole                             4-20-2, no hidden activation: the documents' network
mlp:4-20-2[:relu][:logits][:nobias]  `mlp` with these sizes, activation, and without softmax or biases
"""

from parl_evokit.errors import EvolutionError
from parl_evokit.models.numpy_model import ACTIVATIONS, NumpyModel, mlp

__all__ = ["built_in"]

ALIASES = {"cartpole": "mlp:4-20-2:linear"}


def built_in(name: str) -> NumpyModel | None:
    """The model of this name; None where the name is none of a built-in model.

    Raises:
        EvolutionError: The name begins as that of a perceptron and goes on otherwise.
    """
    kind, *words = ALIASES.get(name, name).split(":")
    if kind != "mlp" or not words:
        return None
    sizes, options = words[0].split("-"), words[1:]
    unknown = [word for word in options if word not in {*ACTIVATIONS, "logits", "nobias"}]
    activations = [word for word in options if word in ACTIVATIONS]
    if unknown or len(activations) > 1 or len(sizes) < 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise EvolutionError(
            f"{name!r} is no model: a perceptron's name is mlp:<inputs>-<hidden>-...-<outputs>, then perhaps one of "
            f"{', '.join(ACTIVATIONS)}, logits, nobias, each after a colon"
        )
    return mlp(
        [int(size) for size in sizes],
        activation=activations[0] if activations else "tanh",
        softmax="logits" not in options,
        bias="nobias" not in options,
    )
