# SPDX-License-Identifier: Apache-2.0
"""How much of a card each kind of output shows."""

from dataclasses import dataclass

_BIG = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that is shown of each thing; `hint`: where the rest is."""

    findings: int
    communicators: int
    kinds: int  # kinds of operation for a communicator
    operations: int  # kinds of operation, of all communicators together
    devices: int
    stragglers: int
    hangs: int
    names: int  # names in one line
    node_chars: int
    lines: int  # lines about missing data
    series: int
    periods: int
    peers: int  # peers of network detail
    hosts: int
    labels: int  # labels of each kind
    everybody: bool  # also processes that were only the slowest
    hint: str

    def more(self, words: str) -> str:
        """Return the line about what is left out."""
        return f"and {words} more{self.hint}"


TERMINAL = Limits(5, 16, 12, 10, 12, 5, 4, 12, 300, 12, 3, 8, 8, 8, 8, False, " (--all shows all)")
EVERYTHING = Limits(*(_BIG,) * 15, True, "")
PAGE = Limits(
    50, 64, 24, _BIG, 64, 32, 16, 24, 600, 64, 6, 24, 48, 48, 24, False, " (report --json has all)"
)
