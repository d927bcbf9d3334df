"""Mutations of bytes, texts and JSON. All are chosen by the given source of chance alone."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

BOUNDARIES = (
    0, 1, -1, 2, 63, 64, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
)  # fmt: skip
# Texts that a terminal, a page, a mail, a shell, a format or a parser could trip over.
NASTY = (
    "\x1b[2J\x1b]0;x\x07", "\x00", "\r\n", "\n", "\t", "\x7f\x9b", "\u202e\u2066", "\u2028",
    "\ufeff",
    "<script>zz9</script>", '"><img src=x onerror=zz9>', "</style><svg onload=zz9>", "&lt;&#0;",
    "{{ 7777*3 }}{% x %}", "%s%n%(x)s{0}", "=?utf-8?q?a=0D=0ABcc:_zz9=40example.org?=",
    "=?utf-8?b?DQpCY2M6IHp6OUBleGFtcGxlLm9yZw==?=", "x\r\nBcc: zz9@example.org", "../../etc/passwd",
    "n[1-65536]", "n[1-4", "n[1-9,[2]]", "n[000000000000000001-9]", "\ud800", "\udfff",
    "NaN", "Infinity", "-Infinity", "1e999", "1e-999", "-0", "0x7f", "1" * 400, "9" * 19,
    "\u00e9\u4e2d\U0001d54f", "a" * 300, "()" * 50, "\\" * 99, '"' * 33, " " * 3000, "1" * 3000,
    "(null)", "None", "true", "",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.%-]*|\"[^\"]*\"")

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]


def several(
    chance: Random, data: bytes, corpus: Sequence[bytes], ways: Sequence[Mutation]
) -> bytes:
    """Return data that went one to six of these ways, mostly one or two."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 6))):
        data = chance.choice(ways)(chance, data, corpus)
    return data


# Bytes.


def flip(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Change a bit, a byte, or a run of bytes."""
    if not data:
        return b"\0"
    found = bytearray(data)
    at = chance.randrange(len(found))
    match chance.randrange(3):
        case 0:
            found[at] ^= 1 << chance.randrange(8)
        case 1:
            found[at] = chance.randrange(256)
        case _:
            end = min(len(found), at + chance.choice((2, 4, 8, 64)))
            found[at:end] = bytes([chance.choice((0, 255, chance.randrange(256)))]) * (end - at)
    return bytes(found)


def cut(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Take a part out, mostly the end."""
    at = chance.randrange(len(data) + 1)
    return data[:at] + (data[at + chance.randrange(64) :] if chance.random() < 0.6 else b"")


def splice(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Go on with another input from somewhere."""
    other = chance.choice(corpus) if corpus else data
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def repeat(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Repeat a part of it."""
    at = chance.randrange(len(data) + 1)
    part = data[at : at + chance.choice((1, 8, 100, 1000))]
    return data[:at] + part * chance.choice((1, 2, 40)) + data[at:]


def integer(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Put a boundary into an aligned field of 1, 2, 4 or 8 bytes."""
    width = chance.choice((1, 2, 4, 8))
    if len(data) < width:
        return data
    at = chance.randrange(len(data) // width) * width
    return data[:at] + boundary(chance, width) + data[at + width :]


def boundary(chance: Random, width: int) -> bytes:
    """Return a boundary, or a number near one, as little-endian bytes."""
    value = chance.choice(BOUNDARIES) + chance.choice((0, 0, 0, 1, -1))
    return (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")


BYTES: tuple[Mutation, ...] = (flip, flip, cut, splice, repeat, integer, integer)

# Texts.


def number(chance: Random) -> str:
    """Return the text of a number that is one in some languages."""
    value = chance.choice(BOUNDARIES)
    return chance.choice(
        (str(value), str(value), f"{value}.5", f"{value}e3", "1e308", "1e999", "1e-320",
         "nan", "inf", "-0.0", f"+{value}",
         f" {value}", "1_000", "\u0661", "0" * 30 + "7", "9" * 400)
    )  # fmt: skip


def _replace(chance: Random, data: bytes, pattern: re.Pattern[bytes], new: str) -> bytes:
    # From somewhere on: to look at all of a long text would take most of the time.
    found = pattern.search(data, chance.randrange(len(data) + 1)) or pattern.search(data)
    if found is None:
        return data
    return data[: found.start()] + encoded(new) + data[found.end() :]


def encoded(text: str) -> bytes:
    """Return a text's bytes, those of halves of characters, too."""
    return text.encode("utf-8", "surrogatepass")


def change_number(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Replace a number by another."""
    return _replace(chance, data, _NUMBER, number(chance))


def change_word(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Replace a word by a nasty one."""
    return _replace(chance, data, _WORD, chance.choice(NASTY))


def insert(chance: Random, data: bytes, _corpus: Sequence[bytes] = ()) -> bytes:
    """Put a nasty text, or a long run of one character, somewhere."""
    at = chance.randrange(len(data) + 1)
    if chance.random() < 0.3:
        run = chance.choice(b' \t\n0.:-([{"\\<,=a\x00\xff'), chance.choice((10, 500, 4000, 20000))
        return data[:at] + bytes([run[0]]) * run[1] + data[at:]
    return data[:at] + encoded(chance.choice(NASTY)) + data[at:]


def lines(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Take a line away, repeat it, or move one here from another input."""
    rows = data.split(b"\n")
    at = chance.randrange(len(rows))
    match chance.randrange(4):
        case 0:
            del rows[at]
        case 1:
            rows[at:at] = [rows[at]] * chance.choice((1, 2, 50))
        case 2:
            rows.insert(at, chance.choice(chance.choice(corpus or (data,)).split(b"\n")))
        case _:
            other = chance.randrange(len(rows))
            rows[at], rows[other] = rows[other], rows[at]
    return b"\n".join(rows)


TEXT: tuple[Mutation, ...] = (
    change_number, change_number, change_word, change_word, insert, lines, lines, flip, cut, splice,
)  # fmt: skip

# JSON.

_DEEP = "zz9 deep"  # is written as lists in lists


def change_value(chance: Random, value: Any) -> Any:
    """Change one part of a JSON value, or return another."""
    places = list(_places(value))
    if not places:
        return _leaf(chance, value)
    # Deep parts are many: half of the time near the root.
    holder, key = chance.choice(places[: 12 if chance.random() < 0.3 else None])
    old = holder[key]
    match chance.randrange(10):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 0:
            holder[key : key + 1] = []
        case 1 if isinstance(holder, list):
            holder[key:key] = [old] * chance.choice((1, 2, 50, 2000 if len(places) < 2000 else 5))
        case 2:
            other, place = chance.choice(places)
            part = json.dumps(other[place])
            holder[key] = json.loads(part) if len(part) < 100_000 else None
        case 3:
            holder[key] = chance.choice(([], {}, [[]], {"": None}, None, True, [old], {"a": old}))
        case 4:
            holder[key] = _DEEP
        case _:
            holder[key] = _leaf(chance, old)
    return value


def _leaf(chance: Random, old: Any) -> Any:
    if isinstance(old, str) and chance.random() < 0.7:
        return chance.choice((chance.choice(NASTY), old + chance.choice(NASTY), old[:1000] * 100))
    if isinstance(old, int | float) and not isinstance(old, bool) and chance.random() < 0.7:
        near = old * 2, -old, old + 1, old * 10**30
        far = 1e308, float("nan"), float("inf"), 0.1, 10**30
        return chance.choice((chance.choice(BOUNDARIES), chance.choice(near), chance.choice(far)))
    return chance.choice((None, True, False, *BOUNDARIES, 10**400, 1e308, *NASTY, [], {}))


def _places(value: Any) -> Iterable[tuple[Any, Any]]:
    """Yield all parts below a value, as what holds them and where in it."""
    rest = deque([value] if isinstance(value, dict | list) else [])
    while rest:
        holder = rest.popleft()
        keys: Iterable[Any] = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                rest.append(holder[key])


def change_json(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Change parts of a JSON value; what is none is changed as a text."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return several(chance, data, corpus, TEXT)
    for _ in range(chance.choice((1, 1, 2, 4))):
        value = change_value(chance, value)
    return dumped(value)


def dumped(value: Any) -> bytes:
    """Return a JSON value's bytes, with numbers that JSON has not, and deeper than Python goes."""
    found = json.dumps(value, separators=(",", ":")).encode()
    return found.replace(json.dumps(_DEEP).encode(), b"[" * 3000 + b"]" * 3000)
