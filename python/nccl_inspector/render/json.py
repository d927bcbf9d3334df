# SPDX-License-Identifier: Apache-2.0
"""A card as JSON, the JSON Schema of that, and back: all three from model/card.py.

Python's types are JSON's; a tuple is an array, None is null. A Unix time has its ISO-8601 form
beside it: `start_s` and `start`. `python -m nccl_inspector.render.json` prints the schema.
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
from nccl_inspector.model.kind_labels import SIZE_CLASS_MAX
from nccl_inspector.model.operation_label import LABEL_KINDS
from nccl_inspector.model.wording import instant

BYTES_MAX = 256 << 20
_TEXT_MAX = 1 << 20
_INTEGER_MAX = (1 << 63) - 1
_EXACT_MAX = 1 << 53  # an integer that a float has exactly
_FLOATS = (float, float | None)
# Fields that are Unix times, whatever they are of.
_TIMES = {"start_s": "start", "end_s": "end", "since_s": "since"}
_ISO = r"^-?[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z$"
# Those whose words are a fixed set.
_WORDS = {
    ("Verdict", "status"): model.STATUSES,
    ("Verdict", "cause"): ("", *model.CAUSES),
    ("Verdict", "confidence"): ("", *model.CONFIDENCES),
    ("Finding", "confidence"): model.CONFIDENCES,
    ("Finding", "cause"): ("", *model.CAUSES),
    ("NetworkPeer", "direction"): networkmodel.DIRECTIONS,
    ("LabelRow", "kind"): LABEL_KINDS,
}
# Those that the schema lists and that are read all the same: a later release may have more.
_OPEN_WORDS = {("Finding", "rule"): tuple(one.id for one in rules.RULES)}
# Least and most of numbers from which a place in a table or a length of time is made.
_RANKS = 0, (1 << 31) - 1
_RANGES = {
    "size_class": (0, SIZE_CLASS_MAX),
    "nranks": _RANKS,
    "nnodes": _RANKS,
    "ranks_expected": _RANKS,
    "ranks_seen": _RANKS,
    "num_nodes": _RANKS,
    "window_s": (0, 1 << 33),  # of slow_times/line_columns.py, whatever lengths boxes claim
    "windows": (0, 1 << 20),
}
_PLAIN_KINDS = frozenset({str, int, float, type(None)})
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


@cache
def _hints(kind: type) -> dict[str, Any]:
    # Of a NewType what it is made of.
    hints = get_type_hints(kind)
    return {name: getattr(hint, "__supertype__", hint) for name, hint in hints.items()}


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def iso(unix_s: float | None) -> str | None:
    """Return a time as ISO-8601 in UTC; None: not known, or none that a calendar has."""
    at = None if unix_s is None else instant(unix_s)
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _without_none(kind: Any) -> Any:
    (found,) = (one for one in get_args(kind) if one is not type(None))
    return found


# Out.


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _members(value)
    if isinstance(value, tuple):
        kinds = set(map(type, value))
        if kinds <= _PLAIN_KINDS and int not in kinds:  # a series: not one by one
            return value
        return [_value(one) for one in value]
    if type(value) is int:  # a sum of what boxes claim may be more than can be read again
        return min(max(value, -_INTEGER_MAX), _INTEGER_MAX)
    if isinstance(value, Mapping):
        return {str(key): _value(one) for key, one in value.items()}
    return value


def _members(one: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if type(value) is int and abs(value) > _EXACT_MAX and field.type in _FLOATS:
            value = float(value)  # as it will be when it is read again
        found[field.name] = _value(value)
        if field.name in _TIMES:
            found[_TIMES[field.name]] = iso(value)
    return found


def to_json(card: Card, generated: datetime) -> str:
    """Return the card as one line of JSON, ASCII only; `generated`: when, with a time zone.

    Raises:
        ValueError: a figure is not a finite number.
    """
    head = {
        "schema_version": SCHEMA_VERSION,
        "generated_at": iso(generated.timestamp()),
        "tool_version": __version__,
        "exit_code": card.exit_code,
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
        # A later release may add some; 2.0.0 would be one that takes some away.
        "additionalProperties": True,
    }


def _kinds(kind: Any) -> Iterator[type]:
    """Return the dataclasses that a type is made of, itself the last."""
    if dataclasses.is_dataclass(kind):
        for hint in _hints(cast(type, kind)).values():
            yield from _kinds(hint)
        yield cast(type, kind)
    for one in get_args(kind):
        yield from _kinds(one)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what to_json writes."""
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
        "properties": head | card["properties"],
        "required": [*head, *card["required"]],
        "$defs": {one.__name__: _object_of(one) for one in _kinds(Card) if one is not Card},
    }


def schema_text() -> str:
    """Return the schema as the file of it has it."""
    return json.dumps(make_schema(), indent=1) + "\n"


# Back.


class _BadError(ValueError):
    """What is wrong with a value, and where."""


def _expect(is_right: bool, where: str, what: str) -> None:
    if not is_right:
        raise _BadError(f"{where}: not {what}")


def _number(value: Any, kind: type, where: str) -> Any:
    _expect(type(value) in (int, kind), where, _PLAIN[kind])
    if kind is float:
        # An int of any length is JSON; not all are floats.
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
        _expect(type(value) is str and value in list(kind), where, "one of its words")
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
    """Return a dataclass; keys that a later release added are not looked at."""
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
        _expect(words is None or found[field.name] in words, path, "one of its words")
        if field.name in _RANGES and found[field.name] is not None:
            least, most = _RANGES[field.name]
            _expect(least <= found[field.name] <= most, path, f"from {least} to {most}")
    return kind(**found)


def _no_constant(name: str) -> float:
    raise _BadError(f"{name} is no JSON")


def card_from_json(text: str | bytes) -> Card:
    """Return the card that to_json wrote, also in a release with other minor versions.

    Raises:
        RefusedError: too_big, not_json, version or bad_card.
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
