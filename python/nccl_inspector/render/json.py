# SPDX-License-Identifier: Apache-2.0
"""A card as JSON, the JSON Schema of that, and reading it back: all three follow model/card.py.

Python's types map to JSON's: a tuple is an array, None is null. A Unix time has its ISO-8601 form
beside it, for example `start_s` and `start`. `python -m nccl_inspector.render.json` prints the
schema.
"""

import dataclasses
import json
import types
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from nccl_inspector import __version__
from nccl_inspector.errors import RefusedError
from nccl_inspector.model import card as model
from nccl_inspector.model import card_network as networkmodel
from nccl_inspector.model import rules
from nccl_inspector.model.card import SCHEMA_VERSION, Card
from nccl_inspector.model.headline import headline
from nccl_inspector.model.kind_labels import SIZE_CLASS_MAX
from nccl_inspector.model.operation_label import LABEL_KINDS
from nccl_inspector.model.wording import instant

BYTES_MAX = 256 << 20
_TEXT_MAX = 1 << 20
_INTEGER_MAX = (1 << 63) - 1
_EXACT_MAX = 1 << 53  # up to here a float holds every integer exactly
_FLOATS = (float, float | None)
# Fields that are Unix times, and the names of their ISO-8601 forms.
_TIMES = {"start_s": "start", "end_s": "end", "since_s": "since"}
_ISO = r"^-?[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z$"
# Fields whose texts are of a fixed set.
_WORDS = {
    ("Verdict", "status"): model.STATUSES,
    ("Verdict", "cause"): ("", *model.CAUSES),
    ("Verdict", "confidence"): ("", *model.CONFIDENCES),
    ("Finding", "confidence"): model.CONFIDENCES,
    ("Finding", "cause"): ("", *model.CAUSES),
    ("NetworkPeer", "direction"): networkmodel.DIRECTIONS,
    ("LabelRow", "kind"): LABEL_KINDS,
}
# Fields whose texts the schema lists, but any other is accepted: a later release may have more.
_OPEN_WORDS = {("Finding", "rule"): tuple(one.id for one in rules.RULES)}
# Lowest and highest value of numbers that become an index of a table or a length of time.
_RANKS = 0, (1 << 31) - 1
_RANGES = {
    "size_class": (0, SIZE_CLASS_MAX),
    "nranks": _RANKS,
    "nnodes": _RANKS,
    "ranks_expected": _RANKS,
    "ranks_seen": _RANKS,
    "num_nodes": _RANKS,
    "window_s": (0, 1 << 33),  # the most in slow_times/line_columns.py
    "windows": (0, 1 << 20),
}
_PLAIN_KINDS = frozenset({str, int, float, type(None)})
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


@cache
def _hints(kind: type) -> dict[str, Any]:
    # A NewType is replaced by its base type.
    hints = get_type_hints(kind)
    return {name: getattr(hint, "__supertype__", hint) for name, hint in hints.items()}


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def iso(unix_s: float | None) -> str | None:
    """Return a time as ISO-8601 in UTC; None: not known, or outside the calendar."""
    at = None if unix_s is None else instant(unix_s)
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _without_none(kind: Any) -> Any:
    (found,) = (one for one in get_args(kind) if one is not type(None))
    return found


# Writing.


@cache
def _written(kind: type) -> tuple[tuple[str, bool, str | None], ...]:
    """Return each field of a class: its name, whether it is a float, the name of it as a date."""
    return tuple(
        (field.name, field.type in _FLOATS, _TIMES.get(field.name))
        for field in dataclasses.fields(kind)
    )


def _value(value: Any) -> Any:
    if type(value) in _PLAIN_KINDS and type(value) is not int:  # most of a large card
        return value
    if dataclasses.is_dataclass(value):
        return _members(value)
    if isinstance(value, tuple):
        kinds = set(map(type, value))
        if kinds <= _PLAIN_KINDS and int not in kinds:  # a long series: not value by value
            return value
        return [_value(one) for one in value]
    if type(value) is int:  # a sum of boxes' claims may be too large to read back
        return min(max(value, -_INTEGER_MAX), _INTEGER_MAX)
    if isinstance(value, Mapping):
        return {str(key): _value(one) for key, one in value.items()}
    return value


def _members(one: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind: type = type(one)
    for name, is_float, date in _written(kind):
        value = getattr(one, name)
        if is_float and type(value) is int and abs(value) > _EXACT_MAX:
            value = float(value)  # the value that reading it back gives
        found[name] = _value(value)
        if date is not None:
            found[date] = iso(value)
    return found


def to_json(card: Card, generated: datetime) -> str:
    """Return the card as one line of ASCII JSON; `generated`: the time, with a time zone.

    Raises:
        ValueError: a figure is not finite.
    """
    head = {
        "schema_version": SCHEMA_VERSION,
        "generated_at": iso(generated.timestamp()),
        "tool_version": __version__,
        "exit_code": card.exit_code,
        "headline": headline(card),
    }
    return json.dumps(head | _members(card), allow_nan=False) + "\n"


# The schema.


def _schema_of(kind: Any) -> dict[str, Any]:
    if _is_optional(kind):
        return {"anyOf": [_schema_of(_without_none(kind)), {"type": "null"}]}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if _is_enum(kind):
        return {"enum": [one.value for one in kind]}
    if dataclasses.is_dataclass(kind):
        return {"$ref": f"#/$defs/{cast(type, kind).__name__}"}
    words = get_args(kind)
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": _schema_of(words[1])}
    if words[1:] == (...,):
        return {"type": "array", "items": _schema_of(words[0])}
    items = [_schema_of(one) for one in words]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _object_of(kind: type) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        properties[name] = _schema_of(hint)
        at = kind.__name__, name
        if words := _WORDS.get(at) or _OPEN_WORDS.get(at):
            properties[name] = {"enum": list(words)}
        if name in _RANGES:
            integer = properties[name].get("anyOf", [properties[name]])[0]
            integer["minimum"], integer["maximum"] = _RANGES[name]
        if name in _TIMES:
            time = {"type": "string", "pattern": _ISO}
            properties[_TIMES[name]] = {"anyOf": [time, {"type": "null"}]}
    about = " ".join((kind.__doc__ or "").split())
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        # A later release may add properties; removing one would need version 2.0.0.
        "additionalProperties": True,
    }


def _kinds(kind: Any) -> Iterator[type]:
    """Yield the dataclasses that a type consists of; the type itself comes last."""
    if dataclasses.is_dataclass(kind):
        for hint in _hints(cast(type, kind)).values():
            yield from _kinds(hint)
        yield cast(type, kind)
    for one in get_args(kind):
        yield from _kinds(one)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the output of to_json."""
    card = _object_of(Card)
    head = {
        "schema_version": {"type": "string", "pattern": "^1\\.[0-9]+\\.[0-9]+$"},
        "generated_at": {"type": "string", "pattern": _ISO},
        "tool_version": {"type": "string"},
        "exit_code": {"enum": [0, 1, 2, 3]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Report card of nccl-inspector, version {SCHEMA_VERSION}",
        "description": " ".join((model.__doc__ or "").split()),
        **card,
        # An earlier release has no headline.
        "properties": {**head, "headline": {"type": "string"}, **card["properties"]},
        "required": [*head, *card["required"]],
        "$defs": {one.__name__: _object_of(one) for one in _kinds(Card) if one is not Card},
    }


def schema_text() -> str:
    """Return the text of the schema's file."""
    return json.dumps(make_schema(), indent=1) + "\n"


# Reading.


class _BadError(ValueError):
    """What is wrong with a value, and where it is."""


def _expect(is_right: bool, where: str, what: str) -> None:
    if not is_right:
        raise _BadError(f"{where}: not {what}")


def _number(value: Any, kind: type, where: str) -> Any:
    _expect(type(value) in (int, kind), where, _PLAIN[kind])
    if kind is float:
        # JSON allows integers of any length; not all fit a float.
        _expect(abs(value) < 1 << 1023 and isfinite(value), where, "a finite number")
        return float(value)
    _expect(abs(value) <= _INTEGER_MAX, where, "a 64-bit integer")
    return value


def _read(value: Any, kind: Any, where: str) -> Any:
    if _is_optional(kind):
        return None if value is None else _read(value, _without_none(kind), where)
    if kind in (int, float):
        return _number(value, kind, where)
    if kind in (str, bool):
        _expect(type(value) is kind, where, _PLAIN[kind])
        _expect(kind is bool or len(value) <= _TEXT_MAX, where, "a text of this length")
        return value
    if _is_enum(kind):
        _expect(type(value) is str and value in list(kind), where, "one of the allowed words")
        return kind(value)
    if dataclasses.is_dataclass(kind):
        return _read_members(value, cast(type, kind), where)
    words = get_args(kind)
    if get_origin(kind) is dict:
        _expect(isinstance(value, dict), where, "object")
        return {name: _read(one, words[1], f"{where}.{name:.40}") for name, one in value.items()}
    _expect(isinstance(value, list), where, "array")
    if words[1:] == (...,):
        return tuple(_read(one, words[0], f"{where}[{at}]") for at, one in enumerate(value))
    _expect(len(value) == len(words), where, f"array of {len(words)}")
    return tuple(
        _read(one, word, f"{where}[{at}]")
        for at, (one, word) in enumerate(zip(value, words, strict=True))
    )


def _read_members(value: Any, kind: type, where: str) -> Any:
    """Return a dataclass; unknown keys (of a later release) are ignored."""
    _expect(isinstance(value, dict), where, "object")
    found = {}
    for field in dataclasses.fields(kind):
        path = f"{where}.{field.name}"
        if field.name not in value:
            is_needed = (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
            _expect(not is_needed, path, "there")
            continue
        found[field.name] = _read(value[field.name], _hints(kind)[field.name], path)
        words = _WORDS.get((kind.__name__, field.name))
        _expect(words is None or found[field.name] in words, path, "one of the allowed words")
        if field.name in _RANGES and found[field.name] is not None:
            least, most = _RANGES[field.name]
            _expect(least <= found[field.name] <= most, path, f"from {least} to {most}")
    return kind(**found)


def _no_constant(name: str) -> float:
    raise _BadError(f"{name} is not valid JSON")


def card_from_json(text: str | bytes) -> Card:
    """Return the card that to_json wrote, also from a release with another minor version.

    Raises:
        RefusedError: the reason is too_big, not_json, version or bad_card.
    """
    if len(text) > BYTES_MAX:
        raise RefusedError("too_big", f"{len(text)} bytes")
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise RefusedError("not_json", "a report card is JSON") from err
    version = found.get("schema_version") if isinstance(found, dict) else None
    if not isinstance(version, str):
        raise RefusedError("version", "it does not say its schema_version")
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise RefusedError("version", f"not of version {SCHEMA_VERSION.partition('.')[0]}")
    try:
        return cast(Card, _read_members(found, Card, "card"))
    except _BadError as err:
        raise RefusedError("bad_card", ascii(str(err))[1:-1]) from err


if __name__ == "__main__":
    print(schema_text(), end="")
