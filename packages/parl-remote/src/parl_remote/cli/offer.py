"""What a node offers, as options of `xparl start` and `xparl connect`, and in words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from parl_remote.resources import Resources
from parl_remote.system.facilities import cpu_count
from parl_remote.system.host_gpus import visible_gpus
from parl_remote.system.host_memory import usable_memory

__all__ = ["Offer", "offer_options"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Offer:
    """What one node gives to actors.

    Attributes:
        cpu: CPUs.
        gpus: GPUs, as CUDA_VISIBLE_DEVICES names them.
        memory: Bytes.
        labels: Amounts of what the cluster's owner has named.
    """

    cpu: float
    gpus: tuple[str, ...]
    memory: int
    labels: Mapping[str, float]

    @classmethod
    def of(cls, cpu_num: float | None, gpu: str | None, memory: str | None, label: Sequence[str]) -> Offer:
        """From the options.

        Raises:
            click.UsageError: One of them cannot be read.
        """
        cpu = float(cpu_count()) if cpu_num is None else round(cpu_num, 3)
        offer = cls(cpu, _gpus(gpu), usable_memory() if memory is None else _bytes(memory), _labels(label))
        try:
            Resources(offer.cpu, len(offer.gpus), offer.memory, offer.labels)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return offer

    def __str__(self) -> str:
        parts = [f"{self.cpu:g} CPU{'s' * (self.cpu != 1)}"] if self.cpu else []
        if self.gpus:
            parts.append(f"{len(self.gpus)} GPU{'s' * (len(self.gpus) != 1)}")
        parts += [f"{amount:g} {name}" for name, amount in self.labels.items()]
        return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "0 CPUs"


def offer_options(command: _Decorated) -> _Decorated:
    """The options of both commands that make a node."""
    for option in (
        click.option(
            "--label",
            multiple=True,
            metavar="NAME=AMOUNT",
            help="Something else that actors can ask for, for example license=2; may be repeated.",
        ),
        click.option(
            "--memory",
            metavar="SIZE",
            help='Memory to set aside for actors that ask for some, for example "24G". Default: all of this host.',
        ),
        click.option(
            "--gpu",
            metavar="IDS",
            help='GPUs to give to actors, for example "0,1". Default: CUDA_VISIBLE_DEVICES, else all of this host.',
        ),
        click.option(
            "--cpu_num",
            "--cpu-num",
            "cpu_num",
            type=click.FloatRange(0, 1_000_000),
            help="CPUs to give to actors, one for each actor unless it asks for something else. Default: all of this "
            "host.",
        ),
    ):
        command = option(command)
    return command


def _gpus(asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return visible_gpus(os.environ)
    names = tuple(name.strip() for name in asked.split(",") if name.strip())
    if twice := {name for name in names if names.count(name) > 1}:
        raise click.UsageError(f"--gpu names {', '.join(sorted(twice))} more than once")
    return names


def _labels(given: Sequence[str]) -> dict[str, float]:
    labels: dict[str, float] = {}
    for text in given:
        name, equals, amount = text.partition("=")
        name = name.strip()
        try:
            value = float(amount)
        except ValueError:
            equals = ""
            value = 0.0
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--label takes a name and an amount, for example license=2, not {text!r}")
        if name in labels:
            raise click.UsageError(f"--label {name} is given twice")
        labels[name] = value
    return labels


def _bytes(text: str) -> int:
    read = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if read is None:
        raise click.UsageError(f'--memory is a size such as "24G" or "512M", not {text!r}')
    return int(float(read[1]) * _UNITS[read[2].upper()])
