"""Hostile messages: protobufs that can be read, but whose fields hold what nobody would send."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)

_MAX_STEPS = 3
_MAX_DEPTH = 3
_MAX_ITEMS = 40
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
}
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3.4e38, float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", "a", "\0", "\x1b[2J\n", "\u202e", "x" * 5000, "-1", "{{ x }}", "../..", "\U0001f336")


def mutated_message(message: MessageT, random_: random.Random) -> MessageT:
    """Return a copy in which a few fields, at any depth, are others, gone or doubled."""
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(random_.randint(1, _MAX_STEPS)):
        _change(_somewhere(changed, random_), random_)
    return changed


def drawn_message(kind: type[MessageT], random_: random.Random, depth: int = 0) -> MessageT:
    """Return a message of which about half of all fields are set."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if random_.random() < 0.5:
            _set(message, field, random_, depth)
    return message


def _somewhere(message: Message, random_: random.Random) -> Message:
    """Return the message or one of those in it."""
    while random_.random() < 0.7:
        inner: list[Message] = []
        listed: Any = message.ListFields()
        for field, value in listed:
            if (
                field.type != FieldDescriptor.TYPE_MESSAGE
                or field.message_type.GetOptions().map_entry
            ):
                continue
            inner += list(value) if field.is_repeated else [value]
        if not inner:
            break
        message = random_.choice(inner)
    return message


def _change(message: Message, random_: random.Random) -> None:
    fields: Any = message.DESCRIPTOR.fields
    if not fields:
        return
    field = random_.choice(fields)
    if random_.random() < 0.2:
        message.ClearField(field.name)
    elif random_.random() < 0.2 and field.is_repeated and getattr(message, field.name):
        _repeat(message, field, random_)
    else:
        _set(message, field, random_, 0)


def _repeat(message: Message, field: Any, random_: random.Random) -> None:
    """Say the items of a list several times."""
    if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
        return
    items = getattr(message, field.name)
    items.extend(list(items) * random_.choice((1, 2, _MAX_ITEMS)))


def _set(message: Message, field: Any, random_: random.Random, depth: int) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _set_message(message, field, random_, depth)
    elif field.is_repeated:
        message.ClearField(field.name)
        num_items = random_.choice((0, 1, 2, 3, _MAX_ITEMS))
        getattr(message, field.name).extend(_value(field, random_) for _ in range(num_items))
    else:
        setattr(message, field.name, _value(field, random_))


def _set_message(message: Message, field: Any, random_: random.Random, depth: int) -> None:
    if depth >= _MAX_DEPTH:
        return
    value = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        key, item = (
            field.message_type.fields_by_name["key"],
            field.message_type.fields_by_name["value"],
        )
        for _ in range(random_.choice((0, 1, 3))):
            value[_value(key, random_)] = _value(item, random_)
    elif field.is_repeated:
        message.ClearField(field.name)
        for _ in range(random_.choice((0, 1, 2, 3))):
            getattr(message, field.name).append(_drawn_as(field, random_, depth))
    else:
        value.CopyFrom(_drawn_as(field, random_, depth))


def _drawn_as(field: Any, random_: random.Random, depth: int) -> Any:
    kind: type[Message] = field.message_type._concrete_class
    return drawn_message(kind, random_, depth + 1)


def _value(field: Any, random_: random.Random) -> Any:
    if field.type in _INTEGERS:
        least, most = _INTEGERS[field.type]
        small = random_.choice((0, 1, 2, 3, 4, 15, 16, 17, 63, 64, 263, 264, 4096))
        return random_.choice((small, small, small, least, least + 1, most, most - 1, most // 2))
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            return random_.random() < 0.5
        case FieldDescriptor.TYPE_STRING:
            return random_.choice(_TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return random_.randbytes(random_.choice((0, 1, 3, 4, 16, 31, 32, 33, 64, 1000)))
        case FieldDescriptor.TYPE_ENUM:
            return random_.choice((0, 1, 2, 3, 7, 2**31 - 1, -1))
        case _:
            return random_.choice(_FLOATS)
