# SPDX-License-Identifier: Apache-2.0
"""Read a file that anybody may have written, in limits of its size and of its lines."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from nccl_inspector.errors import InspectorError

_CHUNK_BYTES = 1 << 20
# O_NONBLOCK: a FIFO must not wait for its writer.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def chunks(path: Path, file_bytes_max: int) -> Iterator[bytes]:
    """Yield the content of a regular file.

    Raises:
        InspectorError: it cannot be read, is not a regular file, or is larger than that.
    """
    try:
        fd = os.open(path, _FLAGS)
    except (OSError, ValueError) as err:
        raise InspectorError(f"{path}: {getattr(err, 'strerror', None) or err}") from err
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InspectorError(f"{path}: not a regular file")
        read = 0
        while chunk := os.read(fd, _CHUNK_BYTES):
            read += len(chunk)
            if read > file_bytes_max:
                raise InspectorError(f"{path}: larger than {file_bytes_max >> 20} MiB")
            yield chunk
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
    finally:
        os.close(fd)


def read_lines(path: Path, file_bytes_max: int, line_bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line, without its end.

    Raises:
        InspectorError: as `chunks`, or a line is longer than that; the text says which one.
    """
    number, rest = 1, b""
    for chunk in chunks(path, file_bytes_max):
        *lines, last = chunk.split(b"\n")
        if lines:
            lines[0] = rest + lines[0]
            rest = b""
        rest += last
        for line in lines:
            if len(line) > line_bytes_max:
                raise InspectorError(f"{path}:{number}: a line of more than {line_bytes_max} bytes")
            yield number, line
            number += 1
        if len(rest) > line_bytes_max:
            raise InspectorError(f"{path}:{number}: a line of more than {line_bytes_max} bytes")
    if rest:
        yield number, rest
