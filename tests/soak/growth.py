"""Memory and descriptors of the agents and of the service over time."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.sandbox.processes import Process

RSS_MOST_BYTES, RSS_MOST_SHARE = 24 << 20, 0.35
FDS_MOST = 6
_SAMPLES_LEAST = 9


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes and descriptors of a process."""

    rss: int
    fds: int


@dataclass
class Growth:
    """Samples of processes by name; a process that was started anew begins anew."""

    samples: dict[tuple[str, Process], list[Sample]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def look(self, name: str, process: Process | None) -> None:
        """Take a sample, if the process lives."""
        if process is None:
            return
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            fds = len([*Path(f"/proc/{process.pid}/fd").iterdir()])
        except OSError:  # gone meanwhile
            return
        rss = next((line.split()[1] for line in status.splitlines() if "VmRSS" in line), None)
        if rss is not None:
            self.samples[name, process].append(Sample(int(rss) << 10, fds))

    def rows(self) -> Iterator[tuple[str, int, Sample, Sample]]:
        """Yield of each process of more than a few samples: name, samples, first and last."""
        for (name, _), found in self.samples.items():
            if len(found) >= _SAMPLES_LEAST:
                yield name, len(found), _middle(found[:3]), _middle(found[-3:])

    def differences(self) -> Iterator[str]:
        """Yield what has grown from the first third of a life to the last by more than it may."""
        for (name, process), found in self.samples.items():
            third = len(found) // 3
            if len(found) < _SAMPLES_LEAST:
                continue
            first, last = _middle(found[third // 2 : third + 1]), _middle(found[-third:])
            if last.rss > first.rss * (1 + RSS_MOST_SHARE) + RSS_MOST_BYTES:
                yield f"{name} ({process.pid}): {first.rss >> 20} to {last.rss >> 20} MiB"
            if last.fds > first.fds + FDS_MOST:
                yield f"{name} ({process.pid}): {first.fds} to {last.fds} descriptors"


def _middle(samples: list[Sample]) -> Sample:
    return Sample(int(median(one.rss for one in samples)), int(median(one.fds for one in samples)))
