# SPDX-License-Identifier: Apache-2.0
"""The parts of a node summary between its first line and its processes: zlib data with JSON.

These are the counters of links and GPUs, and the means of NVIDIA's plugin if that measured.
"""

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from nccl_inspector.counters import node_counters as counters_model
from nccl_inspector.counters.counter_record import RISEN_MAX, coarser
from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.errors import RefusedError
from nccl_inspector.summary.packed_tables import inflate
from nccl_inspector.summary.vendor_means import (
    ROWS_MAX,
    VendorMeans,
    busiest,
    means_from_json,
    means_to_json,
)
from nccl_inspector.system.checked_json import Checks, dump

COUNTERS_BYTES_MAX = 128 << 10  # of a node
VENDOR_BYTES_MAX = 128 << 10
_RAW_BYTES_MAX = 4 << 20  # unpacked
_CHECKS = Checks("bad_summary")
_Part = TypeVar("_Part")


def _unpack(data: bytes, from_json: Callable[[Any], _Part]) -> _Part | None:
    if not data:
        return None
    try:
        return from_json(_CHECKS.load(inflate(data, _RAW_BYTES_MAX)))
    except RefusedError as err:
        raise _CHECKS.refused(str(err)) from err


def pack_counters(counters: NodeCounters | None) -> bytes:
    """Return at most COUNTERS_BYTES_MAX: rises are merged, and at last counters left out."""
    if counters is None:
        return b""
    for most in (RISEN_MAX, 4, 1, 0):
        data = zlib.compress(dump(counters_model.to_json(coarser(counters, most))))
        if len(data) <= COUNTERS_BYTES_MAX:
            return data
    absent = NodeCounters(absent="they did not fit")
    return zlib.compress(dump(counters_model.to_json(absent)))


def unpack_counters(data: bytes) -> NodeCounters | None:
    """Return the counters that `pack_counters` was given; None for no data.

    Raises:
        RefusedError: the data are invalid; the reason is `bad_summary`.
    """
    return _unpack(data, counters_model.from_json)


def pack_vendor(means: VendorMeans | None) -> bytes:
    """Return at most VENDOR_BYTES_MAX: if necessary, only the kinds with the most dumps."""
    if means is None:
        return b""
    most = ROWS_MAX
    while True:
        data = zlib.compress(dump(means_to_json(busiest(means, most))))
        if len(data) <= VENDOR_BYTES_MAX or not most:
            return data
        most //= 2


def unpack_vendor(data: bytes) -> VendorMeans | None:
    """Return the means that `pack_vendor` was given; None for no data.

    Raises:
        RefusedError: the data are invalid; the reason is `bad_summary`.
    """
    return _unpack(data, means_from_json)
