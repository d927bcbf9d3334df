# SPDX-License-Identifier: Apache-2.0
"""What was measured: the times of one thing, and what may be said of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """Times of one thing in milliseconds; `base_ms` is what the same costs without our part."""

    what: str
    times_ms: Sequence[float]
    limit_ms: float | None = None
    base_ms: float = 0.0

    @property
    def median_ms(self) -> float:
        """The middle one."""
        return statistics.median(self.times_ms)

    @property
    def p95_ms(self) -> float:
        """The one that 95 of 100 do not exceed."""
        return sorted(self.times_ms)[-(-len(self.times_ms) * 95 // 100) - 1]

    @property
    def net_ms(self) -> float:
        """The median without the base."""
        return self.median_ms - self.base_ms

    @property
    def verdict(self) -> str:
        """Whether the net median keeps to the limit; empty where there is none."""
        if self.limit_ms is None:
            return ""
        return "ok" if self.net_ms <= self.limit_ms else "OVER"


def as_json(sample: Sample) -> dict[str, object]:
    """Return the figures of a sample."""
    return {
        "what": sample.what,
        "count": len(sample.times_ms),
        "median_ms": round(sample.median_ms, 4),
        "p95_ms": round(sample.p95_ms, 4),
        "net_ms": round(sample.net_ms, 4),
        "ratio": round(sample.median_ms / sample.base_ms, 2) if sample.base_ms else None,
        "limit_ms": sample.limit_ms,
        "verdict": sample.verdict,
    }


def table(samples: Sequence[Sample]) -> str:
    """Return the figures as a table, a line each."""
    width = max(len(sample.what) for sample in samples)
    head = ("what", "count", "median ms", "p95 ms", "net ms", "ratio", "limit ms", "")
    rows = [head, *(_cells(sample) for sample in samples)]
    return "\n".join(
        f"{row[0]:<{width}} {row[1]:>6} {row[2]:>10} {row[3]:>9} {row[4]:>9} {row[5]:>6}"
        f" {row[6]:>9} {row[7]}".rstrip()
        for row in rows
    )


def _cells(sample: Sample) -> tuple[str, ...]:
    based = bool(sample.base_ms)
    return (
        sample.what,
        str(len(sample.times_ms)),
        f"{sample.median_ms:.3f}",
        f"{sample.p95_ms:.3f}",
        f"{sample.net_ms:.3f}" if based else "",
        f"{sample.median_ms / sample.base_ms:.2f}" if based else "",
        f"{sample.limit_ms:g}" if sample.limit_ms is not None else "",
        sample.verdict,
    )
