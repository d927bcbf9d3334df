# SPDX-License-Identifier: Apache-2.0
"""What a hostile job has in its directory: full queues, the longest labels."""

from nccl_inspector.box.layout import OP
from tests.support.boxes import OP_AT, OPS, BoxOf, box_bytes, line, metrics_text, put

RATE = "nccl_bus_bandwidth_gbs"


def full_box() -> bytes:
    """Return a box whose process lives, with as many operations in flight as there is room for."""
    data = box_bytes(BoxOf(state=1))
    for index in range(OPS):
        put(data, OP, OP_AT + index * OP.size, generation=2, peer=-1, enqueue_tick=1)
    return bytes(data)


def page_text(series: int) -> bytes:
    """Return a file of a process; each @@@ is to be replaced with another word each time."""
    rows = [
        line(RATE, "0.12345678901234567", comm="0x@@@", comm_name="n" * 100 + "@@@",
             collective="c@@@", message_size=f"{number + 1}-{number + 2}MB", rank=str(number))
        for number in range(series)
    ]  # fmt: skip
    return metrics_text(*rows)
