"""Messages as plain values for JSON: numbers are numbers, layers as the command line takes them."""

from __future__ import annotations

from google.protobuf.message import Message

from chunkmesh.v1 import common_pb2


def fields_of(message: Message) -> dict[str, object]:
    """Return all fields but those that can be absent and are. Bytes become hexadecimal digits.

    A range of layers becomes a text with both ends included, such as 0-14. Maps and enums are not
    known.
    """
    fields: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            fields[field.name] = [_plain(each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            fields[field.name] = _plain(value)
    return fields


def layers_text(layers: common_pb2.LayerRange) -> str:
    """Return a range as users write it: 0-14."""
    return f"{layers.first}-{layers.last - 1}"


def _plain(value: object) -> object:
    if isinstance(value, common_pb2.LayerRange):
        return layers_text(value)
    if isinstance(value, Message):
        return fields_of(value)
    return value.hex() if isinstance(value, bytes) else value
