# SPDX-License-Identifier: Apache-2.0
"""A cluster that a test has for itself."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.sandbox import Cluster, Options


@contextmanager
def brought_up(beside: Path, options: Options) -> Iterator[Cluster]:
    """A cluster of its own."""
    root = Path(tempfile.mkdtemp(prefix="nccl-inspector-test-", dir=beside.parent))
    variant = Cluster.up(root, options)
    try:
        yield variant
    finally:
        variant.down()
