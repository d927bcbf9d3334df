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
from collections.abc import Mapping
from dataclasses import dataclass, field

from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.metrics import Metric
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
_NAME = re.compile(r"nccl_inspector_metrics_([A-Za-z0-9-]{1,64})\.prom")
_UUID = re.compile(r"(GPU-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Bucket:
    """One kind of operation in one dump; the texts of its two means are in `series`."""

    series: tuple[SeriesLine, SeriesLine]
    kind: LabelledKind | None  # None: the labels are invalid
    gbs: float
    time_us: float


@dataclass(slots=True)
class FileWatch:
    """One file, from pass to pass; times are of time.monotonic()."""

    stamp: Stamp | None = None
    digest: bytes = b""  # of the text read last, so that the text itself need not be kept
    changed_s: float = 0.0
    read_s: float = 0.0
    # What is published: the buckets of the last unchanged text, and when that had last changed.
    taken: tuple[Bucket, ...] = ()
    taken_stamp: Stamp | None = None
    taken_s: float = field(default=float("-inf"))

    def is_fresh(self, now_s: float) -> bool:
        """Tell whether the published buckets may still be published."""
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

    def take(self, buckets: tuple[Bucket, ...]) -> None:
        """Publish these buckets, which are from the text read last, from now on."""
        self.taken, self.taken_stamp, self.taken_s = buckets, self.stamp, self.changed_s


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


def _identified(metric: Metric, labels: Mapping[str, str], value: str) -> SeriesLine:
    """Return the series with our labels; those that NVIDIA's plugin lacks are empty."""
    text = series_text(metric, (labels.get(label, "") for label in metric.labels))
    return SeriesLine(metric, text, value)


def parse_vendor(
    data: bytes, gpu: str, identity: Mapping[str, str], vocabulary: Vocabulary | None = None
) -> tuple[Bucket, ...]:
    """Return the buckets of a GPU's file, with the labels of `identity` (unescaped) put in.

    `vocabulary`: that of the job; None: a new one.

    Raises:
        RefusedError: something is not as NVIDIA's plugin writes it; then nothing is used.
    """
    lines = text_lines(data)
    if lines.pop() or len(lines) % 2 or not lines:
        raise RefusedError("torn", "its lines are not complete pairs")
    if len(lines) > VENDOR_SERIES_MAX:
        raise RefusedError("too_many_series")
    put = {label: escape(value) for label, value in identity.items()}
    put["gpu"] = checked_word("gpu", gpu_label(gpu))
    vocabulary = vocabulary or Vocabulary()
    found: dict[tuple[str, str], Bucket] = {}
    for rate_line, time_line in zip(lines[::2], lines[1::2], strict=True):
        rate, text, rate_value = split_line(rate_line)
        time, time_text, time_value = split_line(time_line)
        if _PAIRS.get(rate.name) != time.name or time_text != text:
            raise RefusedError("torn", "its lines are not complete pairs")
        is_p2p = rate.group == "p2p"
        names = _P2P if is_p2p else _COLLECTIVE
        own = dict(zip(names, check_labels(text, names, rate.name), strict=True))
        check_value(rate_value)
        check_value(time_value)
        labels = {label: vocabulary.word(label, text) for label, text in own.items()} | put
        pair = _identified(rate, labels, rate_value), _identified(time, labels, time_value)
        if (rate.name, text) in found:
            raise RefusedError("duplicate_series", rate.name)
        words = {label: unescape(value) for label, value in own.items()}
        kind = kind_of(words, "p2p_operation" if is_p2p else "collective")
        found[rate.name, text] = Bucket(pair, kind, float(rate_value), float(time_value))
    return tuple(found.values())
