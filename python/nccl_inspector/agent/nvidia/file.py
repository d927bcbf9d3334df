# SPDX-License-Identifier: Apache-2.0
"""The files of NVIDIA's Inspector, if a site has made it the profiler of its jobs.

It writes `nccl_inspector_metrics_<GPU>.prom` in place, bucket by bucket, without an end mark, and
never removes it. So half of a dump looks like a whole one, and the last dump of a dead process like
a new one. Therefore a text counts only if it has not changed for a while, and only for some time
after its last change. Its labels for job, node and GPU are ignored: the manifest and the file's
name tell these.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.metrics import Metric, load_metrics
from nccl_inspector.exposition.process_file import check_labels, check_value, split_line, text_lines
from nccl_inspector.exposition.text import SeriesLine, escape, make_series, series_text, unescape
from nccl_inspector.exposition.vocabulary import Vocabulary, checked_word
from nccl_inspector.model.kind_labels import LabelledKind, kind_of
from nccl_inspector.system.safe_files import Stamp

# Its size classes are linear, so it has more series than ours for the same operations.
VENDOR_SERIES_MAX = 600
# STILL_S: longer than the time between two writes of a dump. STALE_S: three of its shortest
# interval of 30 s.
STILL_S, STALE_S = 0.2, 90.0

_COLLECTIVE = (
    "version", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks", "collective",
    "message_size", "algo_proto",
)  # fmt: skip
_P2P = (*_COLLECTIVE[:7], "p2p_operation", "message_size")
# A bucket is a line of the first metric, then a line of the second.
_PAIRS = {
    "nccl_bus_bandwidth_gbs": "nccl_collective_exec_time_microseconds",
    "nccl_p2p_bus_bandwidth_gbs": "nccl_p2p_exec_time_microseconds",
}
# With NCCL_INSPECTOR_PROM_DUMP_STATS=1 (NCCL 2.32) these follow the buckets, or are the whole dump:
# operations since the start of the GPU's present communicators, and how many of them the plugin
# dropped before it wrote them.
_TOTALS = (
    "nccl_collectives_total",
    "nccl_collectives_dropped_total",
    "nccl_p2p_total",
    "nccl_p2p_dropped_total",
)
_TOTALS_LABELS = ("version", "slurm_job_id", "node", "gpu")
_COUNT = re.compile("[0-9]{1,20}")
_DROPPED = "nccl_inspector_events_dropped_total"
_DROPPED_REASON = "overwritten"
# A series of another release. Its line must be whole, with a number, so that no half of one passes.
_OTHER = re.compile(r'(nccl_[a-z0-9_]{1,100})\{(?:[a-z_]{1,64}="[^"\\]{0,256}",?){0,32}\} ([^ ]+)')
_NAME = re.compile(r"nccl_inspector_metrics_([A-Za-z0-9-]{1,64})\.prom")
_UUID = re.compile(r"(GPU-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Bucket:
    """One kind of operation in one dump; the texts of its two means are in `series`."""

    series: tuple[SeriesLine, SeriesLine]
    kind: LabelledKind | None  # None: the labels are invalid
    gbs: float
    time_us: float


@dataclass(frozen=True, slots=True)
class Totals:
    """The operations of a GPU, collectives and Sends or Recvs, and how many of them are lost."""

    operations: int
    dropped: int


@dataclass(frozen=True, slots=True)
class VendorDump:
    """One dump of one GPU."""

    buckets: tuple[Bucket, ...] = ()
    totals: Totals | None = None  # None: the plugin does not write them
    unknown: int = 0  # series of another release, which are left out

    def __bool__(self) -> bool:
        """Tell whether there is anything in it."""
        return bool(self.buckets) or self.totals is not None


@dataclass(slots=True)
class FileWatch:
    """One file, from pass to pass; times are of a clock that nobody can set."""

    stamp: Stamp | None = None
    digest: bytes = b""  # of the text read last, so that the text itself need not be kept
    changed_s: float = 0.0
    read_s: float = 0.0
    # What is published: the dump of the last unchanged text, and when that had last changed.
    taken: VendorDump = VendorDump()
    taken_stamp: Stamp | None = None
    taken_s: float = field(default=float("-inf"))

    def is_fresh(self, now_s: float) -> bool:
        """Tell whether the published dump may still be published."""
        return now_s - self.taken_s <= STALE_S

    def needs(self, stamp: Stamp) -> bool:
        """Tell whether the file must be read: it has changed, or has been read only once."""
        return not stamp == self.stamp == self.taken_stamp

    def saw(self, data: bytes, stamp: Stamp, age_s: float, now_s: float) -> bool:
        """Note what was read; return whether the text has stayed unchanged long enough to be used.

        `age_s`: seconds since its modification; this counts only for a file that is new to us.
        """
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest == self.digest and stamp == self.stamp:
            return now_s - self.read_s >= STILL_S
        first = self.stamp is None
        self.digest, self.stamp, self.read_s = digest, stamp, now_s
        self.changed_s = now_s - age_s if first else now_s
        return False

    def take(self, dump: VendorDump) -> None:
        """Publish this dump, which is from the text read last, from now on."""
        self.taken, self.taken_stamp, self.taken_s = dump, self.stamp, self.changed_s


def vendor_gpu(name: str) -> str | None:
    """Return the GPU in a file's name; None if it is not a name of NVIDIA's plugin."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def gpu_label(gpu: str) -> str:
    """Return the label of a GPU as our plugin makes it if it knows only the UUID."""
    match = _UUID.fullmatch(gpu)
    return match[1] if match else gpu


def gpu_info(gpu: str, identity: Mapping[str, str]) -> SeriesLine:
    """Return the series that tells the UUID."""
    label, uuid = checked_word("gpu", gpu_label(gpu)), checked_word("gpu_uuid", gpu)
    own = {"gpu": label, "gpu_uuid": uuid, "pci_bus_id": ""}
    return make_series("nccl_gpu_info", {**identity, **own}, "1")


def dropped_series(gpu: str, dropped: int, identity: Mapping[str, str]) -> SeriesLine:
    """Return the series that tells how many operations the plugin dropped."""
    own = {"gpu": checked_word("gpu", gpu_label(gpu)), "process": "", "reason": _DROPPED_REASON}
    return make_series(_DROPPED, {**identity, **own}, str(dropped))


def _identified(metric: Metric, labels: Mapping[str, str], value: str) -> SeriesLine:
    """Return the series with our labels; those that NVIDIA's plugin lacks are empty."""
    text = series_text(metric, (labels.get(label, "") for label in metric.labels))
    return SeriesLine(metric, text, value)


def _totals(lines: Iterable[str]) -> Totals | None:
    """Return the totals in lines of these series; None: there are none.

    Raises:
        RefusedError: the lines are not as the plugin writes them.
    """
    counts: dict[str, int] = {}
    for line in lines:
        name, _, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        check_labels(labels, _TOTALS_LABELS, name)
        if not _COUNT.fullmatch(value):
            check_value(value)
            raise RefusedError("bad_number", name)
        if name in counts:
            raise RefusedError("duplicate_series", name)
        counts[name] = int(value)
    if not counts:
        return None
    if len(counts) < len(_TOTALS):
        raise RefusedError("torn", "its totals are not complete")
    collectives, collectives_dropped, p2p, p2p_dropped = (counts[name] for name in _TOTALS)
    return Totals(collectives + p2p, collectives_dropped + p2p_dropped)


def _is_other(line: str) -> bool:
    """Tell whether a line is a whole series that neither this plugin nor ours is known to write."""
    match = _OTHER.fullmatch(line)
    if match is None or match[1] in load_metrics():
        return False
    check_value(match[2])
    return True


def _bucket(
    rate_line: str, time_line: str, put: Mapping[str, str], vocabulary: Vocabulary
) -> tuple[tuple[str, str], Bucket]:
    """Return a bucket, and what tells it from others of the dump; `put`: escaped labels of ours."""
    rate, text, rate_value = split_line(rate_line)
    time, time_text, time_value = split_line(time_line)
    if _PAIRS.get(rate.name) != time.name or time_text != text:
        raise RefusedError("torn", "its lines are not complete pairs")
    is_p2p = rate.group == "p2p"
    names = _P2P if is_p2p else _COLLECTIVE
    own = dict(zip(names, check_labels(text, names, rate.name), strict=True))
    check_value(rate_value)
    check_value(time_value)
    labels = {label: vocabulary.word(label, text) for label, text in own.items()}
    labels |= put
    pair = _identified(rate, labels, rate_value), _identified(time, labels, time_value)
    words = {label: unescape(value) for label, value in own.items()}
    kind = kind_of(words, "p2p_operation" if is_p2p else "collective")
    return (rate.name, text), Bucket(pair, kind, float(rate_value), float(time_value))


def parse_vendor(
    data: bytes, gpu: str, identity: Mapping[str, str], vocabulary: Vocabulary | None = None
) -> VendorDump:
    """Return the dump in a GPU's file, with the labels of `identity` (unescaped) put in.

    `vocabulary`: that of the job; None: a new one.

    Raises:
        RefusedError: something is not as NVIDIA's plugin writes it; then nothing is used.
    """
    lines = text_lines(data)
    if lines.pop() or not lines:
        raise RefusedError("torn", "its lines are not complete pairs")
    if len(lines) > VENDOR_SERIES_MAX:
        raise RefusedError("too_many_series")
    put = {label: escape(value) for label, value in identity.items()}
    put["gpu"] = checked_word("gpu", gpu_label(gpu))
    vocabulary = vocabulary or Vocabulary()
    totals = [line for line in lines if line.partition("{")[0] in _TOTALS]
    rest = [line for line in lines if line.partition("{")[0] not in _TOTALS]
    known = [line for line in rest if not _is_other(line)]
    found: dict[tuple[str, str], Bucket] = {}
    if len(known) % 2:
        raise RefusedError("torn", "its lines are not complete pairs")
    for rate_line, time_line in zip(known[::2], known[1::2], strict=True):
        key, bucket = _bucket(rate_line, time_line, put, vocabulary)
        if key in found:
            raise RefusedError("duplicate_series", key[0])
        found[key] = bucket
    return VendorDump(tuple(found.values()), _totals(totals), len(rest) - len(known))
