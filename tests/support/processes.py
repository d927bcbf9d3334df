# SPDX-License-Identifier: Apache-2.0
"""Children and open files of a process, and an address that nobody listens at."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(word) for path in tasks for word in path.read_text().split()]


def open_files() -> set[tuple[str, str]]:
    """The descriptors of this process, each with what it is of."""
    found = set()
    for one in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # it was that of the listing
            found.add((one.name, str(one.readlink())))
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """What is done inside must leave no child, also no dead one, and no open file in this process.

    Other tests' children and files, which fixtures of the session may have, do not count.
    """
    before, files = set(children(os.getpid())), open_files()
    yield
    assert open_files() - files == set()
    assert set(children(os.getpid())) - before == set()
