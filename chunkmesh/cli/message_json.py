"""Messages as plain values for JSON: numbers are numbers, layers as the command line takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from chunkmesh.v1 import common_pb2


def fields_of(message: Message) -> dict[str, object]:
    """Return all fields but those that can be absent and are. Bytes become hexadecimal digits.

    A range of layers becomes a text with both ends included, such as 0-14, and a value of an enum
    its name without what all names of it begin with, such as spare. Maps are not known.
    """
    fields: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.enum_type is not None and not field.is_repeated:
            value = _name(field.enum_type.values_by_number, value)
        if field.is_repeated:
            fields[field.name] = [_plain(each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            fields[field.name] = _plain(value)
    return fields


def layers_text(layers: common_pb2.LayerRange) -> str:
    """Return a range as users write it: 0-14."""
    return f"{layers.first}-{layers.last - 1}"


def _name(values: Mapping[int, Any], number: int) -> str:
    """Return the short name of an enum's value; its number if this version does not know it."""
    if number not in values:
        return str(number)
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    name: str = values[number].name
    return name.removeprefix(prefix).lower()


def _plain(value: object) -> object:
    if isinstance(value, common_pb2.LayerRange):
        return layers_text(value)
    if isinstance(value, Message):
        return fields_of(value)
    return value.hex() if isinstance(value, bytes) else value
