# SPDX-License-Identifier: Apache-2.0
"""NCCL's logs in `raw/`, which the processes wrote because of the setting `debug`."""

import re
from collections.abc import Iterator

from nccl_inspector.errors import RefusedError
from nccl_inspector.summary.nccl_logs import FILES_MAX, LogFile, excerpt
from nccl_inspector.system.safe_files import read_at, regular_file

_NAME = re.compile(
    r"nccl\.[0-9]{1,10}\.[0-9a-z]{1,10}\.[0-9]{1,10}\.([0-9]{1,10})\.[A-Za-z0-9._-]{1,100}\.log"
)
# Of a longer file only the begin and the end are read.
_END_BYTES = 512 << 10
_FILE_BYTES_MAX = 1 << 40  # nothing of such a size is on a tmpfs; it is not read whole anyway


def is_log(name: str) -> bool:
    """Tell whether a file has the name that SPANK gives to NCCL's logs."""
    return _NAME.fullmatch(name) is not None


def _in_order(name: str) -> tuple[int, str]:
    match = _NAME.fullmatch(name)
    return (int(match[1]) if match else 0, name)


def read_logs(raw_fd: int, names: list[str], uid: int) -> Iterator[LogFile | RefusedError]:
    """Yield what is kept of each log, or why it is refused; of the first FILES_MAX."""
    for name in sorted(names, key=_in_order)[:FILES_MAX]:
        try:
            with regular_file(name, uid, _FILE_BYTES_MAX, raw_fd) as (fd, status):
                size = status.st_size
                data = read_at(fd, min(size, 2 * _END_BYTES), 0)
                if size > 2 * _END_BYTES:
                    data = data[:_END_BYTES] + b"\n" + read_at(fd, _END_BYTES, size - _END_BYTES)
        except RefusedError as err:
            yield err
            continue
        yield excerpt(name, data, is_cut=size > 2 * _END_BYTES)
