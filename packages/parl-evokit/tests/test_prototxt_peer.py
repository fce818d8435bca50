"""The own reader of the text format agrees with protobuf's on what protobuf accepts."""

import dataclasses
import typing
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_evokit._config_reader import Block, Quoted, Word, parse_prototxt
from parl_evokit.config import Config

descriptor_pb2, descriptor_pool, message_factory, text_format = (
    pytest.importorskip(f"google.protobuf.{name}", reason="protobuf is not installed")
    for name in ("descriptor_pb2", "descriptor_pool", "message_factory", "text_format")
)


def message_class() -> Any:
    """A protobuf message with the fields of `Config`, made from its types."""
    file = descriptor_pb2.FileDescriptorProto(name="config_test.proto", package="evokit_test", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {bool: kinds.TYPE_BOOL, int: kinds.TYPE_UINT64, float: kinds.TYPE_DOUBLE, str: kinds.TYPE_STRING}

    added: set[Any] = set()

    def add(kind: Any) -> str:
        if kind in added:  # used in two places
            return str(kind.__name__)
        added.add(kind)
        message = file.message_type.add(name=kind.__name__)
        for number, (name, hint) in enumerate(typing.get_type_hints(kind).items(), start=1):
            repeated = typing.get_origin(hint) is tuple
            hint = typing.get_args(hint)[0] if repeated else hint
            field = message.field.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if dataclasses.is_dataclass(hint):
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".evokit_test.{add(hint)}"
            elif issubclass(hint, Enum):
                enum = message.enum_type.add(name=f"{name}_kind")
                for value, member in enumerate(hint):
                    enum.value.add(name=member.name, number=value)
                field.type, field.type_name = kinds.TYPE_ENUM, f".evokit_test.{kind.__name__}.{enum.name}"
            else:
                field.type = scalars[hint]
        return str(kind.__name__)

    add(Config)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("evokit_test.Config"))


MESSAGE = message_class()


def tree(message: Any) -> dict[str, list[Any]]:
    """A protobuf message as plain values, every field a list."""
    found: dict[str, list[Any]] = {}
    for field, value in message.ListFields():
        values = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            found[field.name] = [tree(one) for one in values]
        elif field.enum_type is not None:
            found[field.name] = [field.enum_type.values_by_number[one].name for one in values]
        else:
            found[field.name] = values
    return found


def same(block: Block, theirs: dict[str, list[Any]]) -> bool:
    ours: dict[str, list[Any]] = {}
    for field in block.fields:
        ours.setdefault(field.name, []).append(field.value)
    return ours.keys() == theirs.keys() and all(
        len(ours[name]) == len(theirs[name]) and all(map(equal, ours[name], theirs[name])) for name in ours
    )


def equal(value: Any, theirs: Any) -> bool:
    match value, theirs:
        case Block(), dict():
            return same(value, theirs)
        case Quoted(text), str():
            return bool(text == theirs)
        case Word(text), bool():
            return bool(text == str(theirs).lower())
        case Word(text), str():
            return bool(text == theirs)
        case Word(text), _:
            return bool(float(text) == theirs)
    return False


leaves = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**40),
        "std": st.floats(1e-30, 1e30),
        "cached": st.booleans(),
    },
)


@settings(max_examples=examples(60), deadline=None)
@given(
    leaves,
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12),
    st.lists(st.sampled_from(["a", "b'c", 'd"e', "\\", "\n"]), max_size=3),
    st.sampled_from(["\n", " ", ", ", "; ", " # a comment\n"]),
    st.sampled_from([": {", " {", " <"]),
)
def test_both_readers_find_the_same(
    gaussian: dict[str, Any], warehouse: str, sums: list[str], between: str, opening: str
) -> None:
    message = MESSAGE()
    message.async_es.model_warehouse = warehouse
    message.async_es.model_md5.extend(sums)
    written = text_format.MessageToString(message, as_utf8=True)
    inner = between.join(f"{name}: {str(value).lower()}" for name, value in gaussian.items())
    closing = ">" if "<" in opening else "}"
    text = f"{written} solver {{ sampling{opening} gaussian_sampling {{ {inner} }} {closing} type: BASIC_ES }}\n"
    theirs = text_format.Parse(text, MESSAGE())
    assert same(parse_prototxt(text), tree(theirs)), text


def test_a_whole_configuration_written_by_us_is_read_by_protobuf() -> None:
    text = Config().to_prototxt()
    assert same(parse_prototxt(text), tree(text_format.Parse(text, MESSAGE())))
