# SPDX-License-Identifier: Apache-2.0
"""The dumps of NVIDIA's plugin on one node, folded into a bounded record while a job runs.

The record is the file `jobs/<id>/vendor`: what the report gets, and which dump of each GPU was the
last, so that an agent that starts again counts no dump twice.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

from nccl_inspector.agent.nvidia.file import Bucket, Totals, VendorDump
from nccl_inspector.model.kind_labels import LabelledKind
from nccl_inspector.summary.vendor_means import (
    CHECKS,
    COUNT_MAX,
    GBS_MAX,
    GPUS_MAX,
    LEFT_OUT,
    ROWS_MAX,
    TIME_US_MAX,
    Dumps,
    MeansRow,
    Spread,
    VendorMeans,
    means_from_json,
    means_to_json,
)
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.checked_json import TEXT_CHARS_MAX, dump
from nccl_inspector.system.safe_files import Stamp, read_owners

FILE = "vendor"
FORMAT = 1
RECORD_BYTES_MAX = 1 << 20
# Bytes of everything but the rows; bytes of a row without its texts.
_HEAD_BYTES, _NUMBERS_BYTES = 64 << 10, 384
_PROBLEMS_MAX = 8


def _room(gpu: str, kind: LabelledKind) -> int:
    """Return an upper bound of a row's bytes."""
    texts = gpu, kind.comm.name, kind.func, kind.algo_proto
    return _NUMBERS_BYTES + sum(len(dump(one)) for one in texts)


class VendorRecord:
    """What was written about one job on this node."""

    def __init__(self) -> None:
        """Start empty."""
        self._dumps: dict[str, Dumps] = {}
        self._rows: dict[tuple[str, LabelledKind], MeansRow] = {}
        self._refused: Counter[str] = Counter()
        self._problems: list[str] = []
        self._totals: dict[str, Totals] = {}  # the highest of each GPU's dumps
        self._last: dict[str, str] = {}  # stamp of each GPU's last dump, used or refused
        self._bytes = _HEAD_BYTES
        self.is_changed = False  # since the last read or write

    def add(self, gpu: str, stamp: Stamp, time_s: int, dump: VendorDump) -> None:
        """Fold in a dump, unless it is the one that was folded in last."""
        if not self._begin(gpu, stamp):
            return
        known = self._dumps.get(gpu, Dumps(gpu, 0, time_s, time_s))
        self._dumps[gpu] = replace(known, count=known.count + 1, last_s=time_s)
        if dump.totals:
            self._raise_totals(gpu, dump.totals)
        if dump.unknown:
            self._refused["unknown_metric"] += dump.unknown
        seen: set[LabelledKind] = set()
        for one in dump.buckets:
            if one.kind is None:
                self._refused["odd_labels"] += 1
            elif one.gbs > GBS_MAX or one.time_us > TIME_US_MAX:
                self._refused["implausible"] += 1
            elif one.gbs or one.time_us:
                self._fold(gpu, one.kind, one, one.kind not in seen)
                seen.add(one.kind)

    def refuse(self, gpu: str, stamp: Stamp, reason: str) -> None:
        """Count a refused dump, unless it is the one that was refused last."""
        if self._begin(gpu, stamp):
            self._refused[reason] += 1

    def note(self, problem: str) -> None:
        """Keep a line about something that could not be read."""
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(problem[:TEXT_CHARS_MAX])
            self.is_changed = True

    def means(self) -> VendorMeans:
        """Return the part that the report gets."""
        return VendorMeans(
            tuple(self._dumps.values()),
            tuple(self._rows.values()),
            dict(self._refused),
            (*self._problems, *self._dropped()),
        )

    def _raise_totals(self, gpu: str, totals: Totals) -> None:
        """Keep the highest totals: they fall when a communicator is destroyed."""
        known = self._totals.get(gpu, Totals(0, 0))
        self._totals[gpu] = Totals(
            min(max(known.operations, totals.operations), COUNT_MAX),
            min(max(known.dropped, totals.dropped), COUNT_MAX),
        )

    def _dropped(self) -> Iterator[str]:
        """Yield a line if the plugin dropped operations, so that the means lack them."""
        dropped = sum(one.dropped for one in self._totals.values())
        if dropped:
            operations = sum(one.operations for one in self._totals.values())
            yield (
                f"NVIDIA's plugin dropped {dropped} of {operations} operations or more before it "
                "wrote them: the means lack these"
            )

    def _begin(self, gpu: str, stamp: Stamp) -> bool:
        """Tell whether a dump is new, and its GPU not beyond the limit."""
        words = " ".join(map(str, stamp))
        if self._last.get(gpu) == words:
            return False
        self.is_changed = True
        if gpu not in self._last and len(self._last) >= GPUS_MAX:
            self._refused["too_many_files"] += 1
            return False
        self._last[gpu] = words
        return True

    def _fold(self, gpu: str, kind: LabelledKind, one: Bucket, is_first: bool) -> None:
        row = self._rows.get((gpu, kind))
        if row is None:
            room = _room(gpu, kind)
            if len(self._rows) >= ROWS_MAX or self._bytes + room > RECORD_BYTES_MAX:
                self._refused[LEFT_OUT] += 1
                return
            self._bytes += room
            row = MeansRow(gpu, kind, 0, Spread(), Spread())
        self._rows[gpu, kind] = MeansRow(
            gpu,
            kind,
            row.dumps + is_first,
            row.gbs.with_mean(one.gbs),
            row.time_us.with_mean(one.time_us),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the record from the bytes of `encode`.

        Raises:
            RefusedError: it is of another release, or damaged; the reason is `bad_vendor_means`.
        """
        words = CHECKS.table(CHECKS.load(data))
        if words.get("format") != FORMAT:
            raise CHECKS.refused("another format")
        means = means_from_json(words.get("means"))
        record = cls()
        record._dumps = {one.gpu: one for one in means.dumps}
        record._rows = {(one.gpu, one.kind): one for one in means.rows}
        record._refused = Counter(means.refused)
        record._totals = _totals(words.get("totals", {}))
        own = set(record._dropped())
        record._problems = [one for one in means.problems if one not in own]
        last = CHECKS.table(words.get("last"))
        record._last = {gpu: CHECKS.text(stamp) for gpu, stamp in last.items()}
        record._bytes += sum(_room(*key) for key in record._rows)
        return record

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        means = means_to_json(self.means())
        totals = {gpu: [one.operations, one.dropped] for gpu, one in self._totals.items()}
        return dump({"format": FORMAT, "means": means, "last": self._last, "totals": totals})

    def write(self, job_fd: int) -> None:
        """Write the file into the job's directory.

        Raises:
            OSError: the write failed; the old file stays.
        """
        replace_file(job_fd, FILE, self.encode(), 0o600)
        self.is_changed = False


def _totals(value: Any) -> dict[str, Totals]:
    """Return the totals in a record; every value is checked.

    Raises:
        RefusedError: they are not what `encode` writes.
    """
    rows = {gpu: CHECKS.rows(one, 2) for gpu, one in CHECKS.table(value).items()}
    if len(rows) > GPUS_MAX:
        raise CHECKS.refused("too many GPUs")
    return {
        gpu: Totals(*(CHECKS.integer(count, COUNT_MAX) for count in counts))
        for gpu, counts in rows.items()
    }


def read_record(job_fd: int) -> VendorRecord | None:
    """Return what an agent has kept for a job; None if there is no file.

    Raises:
        RefusedError: the file cannot be read, or is of another release.
    """
    data = read_owners(FILE, RECORD_BYTES_MAX, job_fd)
    return None if data is None else VendorRecord.decode(data)
