# SPDX-License-Identifier: Apache-2.0
"""Read a pickle that has only data, without Python's unpickler.

A pickle is a program for a small stack machine. This machine has the opcodes that make numbers,
texts, lists and dictionaries, and no others. It cannot look a name up, import, call or build
anything, so nothing in the file can run. A tuple becomes a list, as in JSON, so a value here
has the same shape as in a JSON dump.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from nccl_inspector.errors import RefusedError

PROTOCOL_MAX = 5
TEXT_BYTES_MAX = 16384  # of one text
OPCODES_MAX = 8 << 20
OBJECTS_MAX = 4 << 20  # lists, dictionaries and texts
_STACK_MAX = 1 << 20
_INTEGER_BYTES_MAX = 9  # of a number; PyTorch's have 8 and a sign
_LINE_BYTES_MAX = 32  # of a number as text

_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_U64, _F64 = struct.Struct("<Q"), struct.Struct(">d")
_MARK: Final = object()


def refused(detail: str) -> RefusedError:
    """Return the error for a pickle that is not accepted."""
    return RefusedError("invalid_pickle", detail)


class _Machine:
    """The stack machine; each opcode is a method."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.objects = 0

    # Parts of the file.

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise refused("it ends early")
        self.at += count
        return part

    def line(self, most: int) -> bytes:
        end = self.data.find(b"\n", self.at, self.at + most + 1)
        if end < 0:
            raise refused("a line without an end, or too long")
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        found: int = _U16.unpack(self.take(2))[0]
        return found

    def u32(self) -> int:
        found: int = _U32.unpack(self.take(4))[0]
        return found

    def u64(self) -> int:
        found: int = _U64.unpack(self.take(8))[0]
        return found

    # Parts of the stack.

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def new(self, value: Any) -> None:
        """Push a value that takes memory of its own."""
        self.objects += 1
        if self.objects > OBJECTS_MAX or len(self.stack) > _STACK_MAX:
            raise refused("too many values")
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise refused("a value is missing")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise refused(f"no {kind.__name__} to fill")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        """Return the values above the last mark, and remove them with it."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                found = self.stack[at + 1 :]
                del self.stack[at:]
                return found
        raise refused("a mark is missing")

    def text(self, count: int) -> None:
        if count > TEXT_BYTES_MAX:
            raise refused("a text is too long")
        self.new(self.take(count).decode("utf-8", "replace"))

    def number(self, text: bytes) -> None:
        try:
            self.push(int(text))
        except ValueError as err:
            raise refused("an invalid number") from err

    def fill(self, pairs: list[Any]) -> None:
        """Put keys and values into the dictionary on top; keys are texts or numbers."""
        table = self.top(dict)
        if len(pairs) % 2:
            raise refused("a key without a value")
        for at in range(0, len(pairs), 2):
            key = pairs[at]
            if type(key) is not str and type(key) is not int:
                raise refused("a key that is no text or number")
            table[key] = pairs[at + 1]

    def keep(self, number: int) -> None:
        """Remember the value on top; the file may say its number, so it is no place in a list."""
        value = self.pop()
        self.push(value)
        self.memo[number] = value

    def recall(self, number: int) -> None:
        if number not in self.memo:
            raise refused("it recalls a value that was not kept")
        if len(self.stack) > _STACK_MAX:
            raise refused("too many values")
        self.push(self.memo[number])

    # Opcodes.

    def proto(self) -> None:
        if self.u8() > PROTOCOL_MAX:
            raise refused("an unknown protocol")

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.new(values[::-1])

    def dictionary(self) -> None:
        pairs = self.since_mark()
        self.new({})
        self.fill(pairs)

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        values = self.since_mark()
        self.top(list).extend(values)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.fill([key, value])

    def set_items(self) -> None:
        self.fill(self.since_mark())

    def old_integer(self) -> None:
        text = self.line(_LINE_BYTES_MAX)
        flag = {b"00": False, b"01": True}.get(text)
        if flag is None:
            self.number(text)
        else:
            self.push(flag)

    def long(self) -> None:
        count = self.u8()
        if count > _INTEGER_BYTES_MAX:
            raise refused("a number is too long")
        self.push(int.from_bytes(self.take(count), "little", signed=True))

    def old_float(self) -> None:
        try:
            self.push(float(self.line(_LINE_BYTES_MAX)))
        except ValueError as err:
            raise refused("an invalid number") from err

    def old_text(self) -> None:
        try:
            self.new(self.line(TEXT_BYTES_MAX).decode("raw-unicode-escape"))
        except UnicodeDecodeError as err:
            raise refused("an invalid text") from err

    def old_place(self) -> int:
        text = self.line(_LINE_BYTES_MAX)
        if not text.isdigit():
            raise refused("an invalid number")
        return int(text)


_OPCODES: dict[int, Callable[[_Machine], object]] = {
    code[0]: method
    for code, method in {
        b"\x80": _Machine.proto,
        b"\x95": lambda m: m.take(8),  # the length of what follows
        b"(": lambda m: m.new(_MARK),
        b"]": lambda m: m.new([]),
        b"}": lambda m: m.new({}),
        b")": lambda m: m.new([]),
        b"l": lambda m: m.new(m.since_mark()),
        b"t": lambda m: m.new(m.since_mark()),
        b"\x85": lambda m: m.tuple_of(1),
        b"\x86": lambda m: m.tuple_of(2),
        b"\x87": lambda m: m.tuple_of(3),
        b"d": _Machine.dictionary,
        b"a": _Machine.append,
        b"e": _Machine.extend,
        b"s": _Machine.set_item,
        b"u": _Machine.set_items,
        b"N": lambda m: m.push(None),
        b"\x88": lambda m: m.push(True),
        b"\x89": lambda m: m.push(False),
        b"I": _Machine.old_integer,
        b"L": lambda m: m.number(m.line(_LINE_BYTES_MAX).removesuffix(b"L")),
        b"J": lambda m: m.push(_I32.unpack(m.take(4))[0]),
        b"K": lambda m: m.push(m.u8()),
        b"M": lambda m: m.push(m.u16()),
        b"\x8a": _Machine.long,
        b"F": _Machine.old_float,
        b"G": lambda m: m.push(_F64.unpack(m.take(8))[0]),
        b"V": _Machine.old_text,
        b"\x8c": lambda m: m.text(m.u8()),
        b"X": lambda m: m.text(m.u32()),
        b"\x8d": lambda m: m.text(m.u64()),
        b"p": lambda m: m.keep(m.old_place()),
        b"q": lambda m: m.keep(m.u8()),
        b"r": lambda m: m.keep(m.u32()),
        b"\x94": lambda m: m.keep(len(m.memo)),
        b"g": lambda m: m.recall(m.old_place()),
        b"h": lambda m: m.recall(m.u8()),
        b"j": lambda m: m.recall(m.u32()),
    }.items()
}
_STOP = ord(".")
# The opcodes that make Python's unpickler run something, for the text of the refusal.
_EXECUTING = {
    ord(code): name
    for code, name in {
        "c": "GLOBAL", "\x93": "STACK_GLOBAL", "R": "REDUCE", "b": "BUILD", "i": "INST",
        "o": "OBJ", "\x81": "NEWOBJ", "\x92": "NEWOBJ_EX", "P": "PERSID", "Q": "BINPERSID",
        "\x82": "EXT1", "\x83": "EXT2", "\x84": "EXT4",
    }.items()
}  # fmt: skip


def _refuse_opcode(code: int, at: int) -> NoReturn:
    name = _EXECUTING.get(code)
    if name is None:
        raise refused(f"byte {at}: opcode 0x{code:02x} is not one of a dump")
    raise refused(f"byte {at}: {name} could run code; it was not executed")


def read_pickle(data: bytes) -> Any:
    """Return the numbers, texts, lists and dictionaries of a pickle of protocol 0 to 5.

    Raises:
        RefusedError: it has anything else in it, ends early, or is larger than any dump.
    """
    machine = _Machine(data)
    for _ in range(OPCODES_MAX):
        code = machine.u8()
        if code == _STOP:
            found = machine.pop()
            if machine.stack:
                raise refused("values are left over")
            return found
        method = _OPCODES.get(code)
        if method is None:
            _refuse_opcode(code, machine.at - 1)
        method(machine)
    raise refused("too many opcodes")
