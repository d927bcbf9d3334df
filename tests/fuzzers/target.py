"""What a fuzzer is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True)
class Read:
    """What reading an input came to, and what makes all that is made of what was read.

    Reading takes less than a tenth of the time. Each input is read; `rest` is called for the first
    input of each way (`way`, else the words), and for one in `Target.rest_of` others.
    """

    words: str
    rest: Callable[[], str]
    way: str = ""


# Runs one input. Returns what came of it, in words that are alike for inputs of the same way.
Run = Callable[[bytes], str | Read]


@dataclass(frozen=True, slots=True)
class Budget:
    """What an input may cost: fixed parts, multiples of what the dearest seed costs, and its size.

    Both grow with the input's size where that is above the largest seed's.
    """

    cpu_s: float = 0.3
    cpu_times: float = 8.0
    memory_bytes: int = 48 << 20
    memory_times: float = 4.0


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input. `prepare` is called in the worker, with a directory of its own."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    mutate: Callable[[Random, bytes, Sequence[bytes]], bytes]
    prepare: Callable[[Path], Run]
    budget: Budget = Budget()
    most_bytes: int = 4 << 20  # longer inputs are cut
    rest_of: int = 1
    inputs: Callable[[bytes], int] = lambda _: 1  # how many there are in one
