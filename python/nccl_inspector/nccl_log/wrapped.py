# SPDX-License-Identifier: Apache-2.0
"""Take off what terminals, collectors and encodings put around the lines of a log.

    \\x1b[36m...\\x1b[0m                                colours of a terminal
    │ text     │                                      the box of a terminal's program, padded
    {"log":"text\\n","stream":"stdout","time":"..."}   docker's json-file, and the like
    UTF-16 with a mark at its begin                   what PowerShell redirects

Each line stays one line, so that its number is still that of the file.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator

from nccl_inspector.nccl_log.lines import whole_lines

_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]{0,32}[A-Za-z]|\][^\x07\n]{0,128}\x07|[()][A-B0])")
# A vertical bar of a box, in UTF-8: light, heavy, double.
_BAR = rb"(?:\xe2\x94[\x82\x83]|\xe2\x95\x91)"
_BOX = re.compile(rb"(?m)^[ \t]{0,8}" + _BAR + rb" ?|[ \t]{0,4096}" + _BAR + rb"[ \t\r]{0,8}$")
_TABLE_END = re.compile(rb"(?m)^([ \t]{0,8}\|[^\n]{0,8192}?)[ \t]{1,4096}\|[ \t\r]{0,8}$")
_BEGIN_BYTES = 4096  # of a block: looked at for how its lines are wrapped
_JSON_LINE_BYTES_MAX = 1 << 16
# Where collectors keep the text of a line.
_MEMBERS = "log", "message", "msg", "line", "text", "textPayload"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def plain_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text in blocks of whole lines, without what is around each line."""
    for block in whole_lines(_decoded(chunks)):
        yield plain(block)


def plain(block: bytes) -> bytes:
    """Return whole lines without what is around each."""
    begin = block[:_BEGIN_BYTES]
    if begin.lstrip()[:2] == b'{"':
        block = b"".join(map(_unpacked, block.splitlines(keepends=True)))
    if b"\x1b" in block:
        block = _COLOUR.sub(b"", block)
    if b"\xe2" in block and (b"\xe2\x94" in block or b"\xe2\x95" in block):
        block = _BOX.sub(b"", block)
    if begin.lstrip()[:1] == b"|" and (b"|\n" in begin or b"|\r\n" in begin):
        block = _TABLE_END.sub(rb"\1", block)
    return block


def _decoded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text as UTF-8, if a mark at its begin says that it is UTF-16."""
    decoder: codecs.IncrementalDecoder | None = None
    is_first = True
    for chunk in chunks:
        data = chunk
        if is_first:
            is_first = not data
            encoding = _UTF16.get(data[:2])
            if encoding is not None:
                decoder = codecs.getincrementaldecoder(encoding)("replace")
                data = data[2:]
            else:
                data = data.removeprefix(codecs.BOM_UTF8)
        yield data if decoder is None else decoder.decode(data).encode("utf-8", "replace")


def _unpacked(line: bytes) -> bytes:
    """Return the text in a line of JSON; another line as it is."""
    if not line.startswith(b"{") or len(line) > _JSON_LINE_BYTES_MAX:
        return line
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return line
    for name in _MEMBERS if isinstance(found, dict) else ():
        text = found.get(name)
        if isinstance(text, str):
            inner = text.rstrip("\r\n").replace("\r", " ").replace("\n", " ")
            return inner.encode("utf-8", "replace") + b"\n"
    return line
