# SPDX-License-Identifier: Apache-2.0
"""Find channels of a communicator that end after the others: a slow rail, without network events.

A ring passes through all nodes once for each channel, so a slow adapter makes its channels late on
all ranks. This accuses no node: the report only notes it with the communicator.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from nccl_inspector.box.channels import OPS_MIN
from nccl_inspector.model.process import Comm


def _places(mask: int) -> Iterator[int]:
    """Return the bits that are set."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def late_channels_note(members: Sequence[Comm]) -> list[str]:
    """Return a sentence about channels that end late on at least half of the ranks, or nothing.

    `members`: the communicator as each of its ranks saw it.
    """
    looked = [one for one in members if one.looked_ops >= OPS_MIN and one.looked_ns]
    votes = Counter(place for one in looked for place in _places(one.late_channels))
    late = sorted(place for place, ranks in votes.items() if 2 * ranks >= len(looked))
    if not late:
        return []
    mask = sum(1 << place for place in late)
    telling = [one for one in looked if one.late_channels & mask]
    used = max(one.channels.bit_count() for one in telling)
    late_us = sum(one.late_ns / one.looked_ops for one in telling) / len(telling) / 1e3
    share = sum(one.late_ns / one.looked_ns for one in telling) / len(telling)
    numbers = ", ".join(map(str, late))
    who = (
        f"channel {numbers} of {used} ends"
        if len(late) == 1
        else f"channels {numbers} of {used} end"
    )
    # An older NCCL does not tell how many nodes there are.
    several = any(one.nnodes != 1 for one in telling)
    slow = "a rail of network adapters or a link" if several else "an NVLink, or PCIe"
    return [
        f"{who} {late_us:,.0f} us after the others, "
        f"{share:.0%} of an operation, on {len(telling)} of {len(looked)} ranks: what only "
        f"these channels use is slow, {slow}"
    ]
