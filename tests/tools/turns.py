# SPDX-License-Identifier: Apache-2.0
"""What takes turns in CI, from commit to commit: a part of the long tests, a release of Slurm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar
from zlib import crc32

_One = TypeVar("_One")


@dataclass(frozen=True)
class Turn:
    """The part of this commit, from 0, and how many parts there are."""

    part: int
    parts: int

    @classmethod
    def of(cls, words: str) -> Self:
        """Read `K/N`; K may be any number, such as a commit's.

        Raises:
            ValueError: it is something else.
        """
        number, parts = words.split("/")
        if int(parts) < 1:
            raise ValueError(words)
        return cls(int(number) % int(parts), int(parts))

    def has(self, test: str) -> bool:
        """Tell whether a test is in this part; each is in exactly one."""
        return crc32(test.encode()) % self.parts == self.part

    def choose(self, ones: Sequence[_One]) -> _One:
        """Return the one whose turn it is."""
        return ones[self.part % len(ones)]

    def part_for(self, ones: Sequence[object]) -> Self:
        """Return the part to run on the chosen one; over all turns each one gets every part."""
        return type(self)(self.part // len(ones), -(-self.parts // len(ones)))
