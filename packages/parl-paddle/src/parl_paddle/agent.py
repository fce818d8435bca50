"""`parl.Agent` on PaddlePaddle: the agent of `parl_core.agent`, extended by static graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import paddle

from parl_core import agent as contract
from parl_core.contracts.batches import Batch
from parl_core.errors import ModelContractError
from parl_paddle._hooks import is_recording
from parl_paddle._programs import Programs
from parl_paddle._tensors import place_of
from parl_paddle.model import Model

__all__ = ["Agent"]


class Agent(contract.Agent):
    """The connection of an environment with an algorithm; the documentation of `parl_core.agent.Agent` applies.

    An agent that defines `build_program(self)` works on static graphs. The constructor calls this method with static
    graphs enabled; inside, methods of the algorithm add operations to the present program
    (`paddle.static.program_guard`). Then the variables of the programs are initialised, and `self.executor.run(program,
    feed=..., fetch_list=...)` runs them. Programs change the same weights and states of PARL's optimizers as eager
    updates, so `get_weights`, `save` and `sync_target` use the result of each step. `save` does not write the state of
    paddle's own optimizers in a program.

    Args:
        algorithm: The algorithm to act and learn with.
        obs_ndim: Number of dimensions of one observation; 0 for a `Discrete` space.
        seed: Seed of the generator that draws exploration on the host; default from the operating system.

    Attributes:
        executor: The executor of this agent's programs; `fluid_executor` is its name in PARL 1.x.
    """

    BACKEND: ClassVar[str] = "paddle"

    _programs: Programs | None = None

    @property
    def executor(self) -> Any:
        """The executor of this agent's programs: `self.executor.run(program, feed={...}, fetch_list=[...])`.

        Raises:
            ModelContractError: The agent defines no `build_program`.
        """
        if self._programs is None:
            raise ModelContractError(
                f"{type(self).__name__} has no executor, because it defines no build_program(self); without static "
                "graphs, predict, sample and learn run the algorithm itself"
            )
        return self._programs.executor

    @property
    def fluid_executor(self) -> Any:
        """The property `executor` under its name in PARL 1.x."""
        return self.executor

    def save_inference_model(
        self,
        save_path: str | os.PathLike[str],
        input_shape_list: Sequence[Sequence[int | None]],
        input_dtype_list: Sequence[str],
        model: Model | None = None,
    ) -> None:
        """Export a model's `forward` for Paddle Inference and `paddle.jit.load`.

        Args:
            save_path: Prefix of the files, such as `./inference/policy`.
            input_shape_list: Shape of each input of `forward`, with None or -1 for a varying size: `[[None, 4]]`.
            input_dtype_list: Dtype of each input, such as `["float32"]`.
            model: The model to export; default the algorithm's model.

        Raises:
            ValueError: The lists differ in length.
            ModelContractError: A lazily shaped layer has not processed a batch yet.
        """
        if len(input_shape_list) != len(input_dtype_list):
            raise ValueError(
                f"each input needs a shape and a dtype; got {len(input_shape_list)} shapes and "
                f"{len(input_dtype_list)} dtypes"
            )
        exported = self.alg.model if model is None else model
        if isinstance(exported, Model):
            exported._require_shapes()
        inputs = [
            paddle.static.InputSpec(list(shape), dtype)  # type: ignore[arg-type]  # paddle's type has a name for each dtype
            for shape, dtype in zip(input_shape_list, input_dtype_list, strict=True)
        ]
        was_training = exported.training
        exported.eval()
        try:
            paddle.jit.save(exported, os.fspath(save_path), input_spec=inputs)
        finally:
            if was_training:
                exported.train()

    def _build(self) -> None:
        build_program: Callable[[], object] | None = getattr(self, "build_program", None)
        if build_program is None:
            return
        self._programs = Programs(place_of(self.alg.device))
        self._programs.build(build_program)

    def run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the algorithm: see the contract.

        Raises:
            ModelContractError: Called by `build_program`.
        """
        self._require_arrays_time()
        return super().run(method, *args, **kwargs)

    def _update(self, batch: Batch, settings: Mapping[str, Any]) -> Any:
        self._require_arrays_time()
        return super()._update(batch, settings)

    def _batched(self, obs: Any) -> tuple[Any, bool]:
        self._require_arrays_time()
        return super()._batched(obs)

    def _require_arrays_time(self) -> None:
        if is_recording():
            raise ModelContractError(
                f"build_program() of {type(self).__name__} calls a method of the agent, which takes arrays; a program "
                "is built of the algorithm's methods and layers.data: self.alg.predict(obs), self.alg.learn(...)"
            )

    def _model_to_store(self, model: Any, program: Any) -> Any:
        if isinstance(model, paddle.static.Program):
            model, program = None, model
        if self._programs is None or model is not None:
            return super()._model_to_store(model, program)
        if program is None:
            program = getattr(self, "learn_program", None)
        if program is None:
            raise ValueError(
                f"{type(self).__name__} builds programs and has no `learn_program`; say whose parameters are meant, "
                "for instance save(path, program=self.train_program)"
            )
        if not self._programs.holds(program):
            raise ValueError(f"the given program uses no parameters of this {type(self).__name__}")
        return None
