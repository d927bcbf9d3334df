# SPDX-License-Identifier: Apache-2.0
"""What the summaries of a job keep of NCCL's own logs (the setting `debug`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_inspector.errors import RefusedError
from nccl_inspector.nccl_log.files import task_of
from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.summary.codec import NodeSummary
from nccl_inspector.summary.nccl_logs import LogFile, unpack_logs

JOB_CHARS_MAX = 32 << 20  # of all nodes; reading them takes a second or two


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The log of one process; `name` has the node's in front."""

    name: str
    file: LogFile


def kept_logs(summaries: Iterable[NodeSummary]) -> tuple[KeptLog, ...]:
    """Return the logs of all nodes, up to JOB_CHARS_MAX; those that are invalid are left out."""
    found: list[KeptLog] = []
    left = JOB_CHARS_MAX
    for summary in summaries:
        try:
            files = unpack_logs(summary.nccl_logs)
        except RefusedError:
            continue
        for file in files:
            left -= len(file.text)
            if left < 0:
                return tuple(found)
            found.append(KeptLog(f"{summary.head.node}/{file.name}", file))
    return tuple(found)


def read_kept(reader: LogReader, logs: Sequence[KeptLog]) -> bool:
    """Read the logs; return whether lines of one are missing."""
    for one in logs:
        data = one.file.text.encode("utf-8", "replace")
        reader.read(one.name, [data], label=task_of(one.file.name), is_output=False)
    return any(one.file.is_cut for one in logs)


def judge_kept(logs: Sequence[KeptLog]) -> LogReport:
    """Return what the logs say."""
    reader = LogReader(own_files=True)
    cut = read_kept(reader, logs)
    if cut:
        reader.log.notes.append("of long logs only the begin and the end are kept")
    return judge_log(reader.log, own_files=True, partial=cut)
