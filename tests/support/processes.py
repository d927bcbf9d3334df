# SPDX-License-Identifier: Apache-2.0
"""Children of a process, and an address that nobody listens at."""

import socket
from pathlib import Path


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(word) for path in tasks for word in path.read_text().split()]
