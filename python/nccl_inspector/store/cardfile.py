# SPDX-License-Identifier: Apache-2.0
"""A report card as the JSON that is stored, and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from nccl_inspector.card.model import SCHEMA_VERSION, Card
from nccl_inspector.errors import InspectorError

CARD_BYTES_MAX = 64 << 20


def card_bytes(card: Card) -> bytes:
    """Return the card as JSON, its fields as keys."""
    words = {"schema_version": SCHEMA_VERSION, **asdict(card)}
    return json.dumps(words, allow_nan=False).encode()


def read_card(data: bytes) -> Card:
    """Return the card that `card_bytes` wrote.

    Raises:
        InspectorError: it is none, or of another schema.
    """
    try:
        words = json.loads(data)
        if not isinstance(words, dict):
            raise TypeError("not an object")
        version = words.pop("schema_version", "")
        if str(version).partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise InspectorError(f"not a report card: schema {version!a}")
        card: Card = _value(Card, words)
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise InspectorError(f"not a report card: {err!a}") from err
    return card


def _value(kind: Any, value: Any) -> Any:
    """Return a value of this type; one of another raises TypeError."""
    if is_dataclass(kind) and isinstance(kind, type):
        return _instance(kind, value)
    origin, words = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in words:
            return None
        (rest,) = (one for one in words if one is not NoneType)
        return _value(rest, value)
    if origin is tuple:
        return _items(words, value)
    if origin is dict:
        return {_value(words[0], key): _value(words[1], one) for key, one in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!a:.40} is no {kind.__name__}")
    return value


def _items(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!a:.40} is no list")
    if kinds[-1] is Ellipsis:
        return tuple(_value(kinds[0], one) for one in value)
    return tuple(_value(kind, one) for kind, one in zip(kinds, value, strict=True))


def _instance(kind: Any, value: Any) -> Any:
    """Fields that are not there have their default; those of a later release are left out."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!a:.40} is no {kind.__name__}")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}
    return kind(**{key: _value(hints[key], one) for key, one in value.items() if key in known})
