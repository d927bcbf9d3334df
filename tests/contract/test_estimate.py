# SPDX-License-Identifier: Apache-2.0
"""The bounds that the estimate counts with are the plugin's."""

import re

from nccl_inspector.estimate.cost import BOX_ROWS, HEADER_BYTES, box_bytes
from nccl_inspector.estimate.shape import (
    GPU_COMMS_MAX,
    GPU_SERIES_MAX,
    KINDS_MAX,
    LIVE_COMMS_MAX,
    usual_metrics,
)
from nccl_inspector.exposition.metrics import load_metrics
from tests.support import boxes
from tests.support.repository import PLUGIN_DIR


def defined(name: str) -> dict[str, int]:
    text = (PLUGIN_DIR / name).read_text()
    return {word: int(size) for word, size in re.findall(r"^#define (\w+) +(\d+)u", text, re.M)}


def test_the_bounds_are_the_plugins() -> None:
    expo, box, choose = map(defined, ("prom/choose.h", "box/box.h", "prom/choose.c"))
    assert (expo["PROM_MAX_SERIES"], expo["PROM_MAX_COMMS"]) == (GPU_SERIES_MAX, GPU_COMMS_MAX)
    assert (box["BOX_LIVE_COMMS"], box["BOX_KEYS"]) == (LIVE_COMMS_MAX, KINDS_MAX)
    rows = {f"BOX_{name}": count for name, count in BOX_ROWS.items()}
    rows["BOX_COMMS"] -= box["BOX_FOLDED_COMMS"]
    assert rows.pop("BOX_COMMS") == box["BOX_LIVE_COMMS"]
    assert rows.items() <= box.items()
    assert (HEADER_BYTES, box_bytes()) == (boxes.HEADER_BYTES, boxes.BOX_BYTES)
    assert choose["COMM_SERIES"] == len(usual_metrics("communicator"))
    assert choose["TIMED_SERIES"] == len(usual_metrics("collective")) == len(usual_metrics("p2p"))
    assert choose["GPU_SERIES"] == len(usual_metrics("gpu_info"))
    process = re.search(
        r"PROCESS_SERIES \((\d+)u \+ BOX_DROPS\)", (PLUGIN_DIR / "prom" / "choose.c").read_text()
    )
    assert process
    # A process that calls nothing has one more, for which there must be room.
    of_net = "nccl_network_followed_ratio"  # only with network detail, and then there is room
    others = sum(one.group == "process" for one in load_metrics().values() if one.name != of_net)
    others += len(usual_metrics("build"))
    assert int(process[1]) == others
    assert len(usual_metrics("process_reason")) == 1
