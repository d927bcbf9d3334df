# SPDX-License-Identifier: Apache-2.0
"""Find ends of jobs that are missing in the queue, so that these jobs get reports too.

The controller's epilog queues an end only if the user's share of the queue has room, and cannot
queue anything while its host is down. Slurm's accounting knows all ends. The ends that have
summaries but no report are put into the queue: some with each pass, within each user's share.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Self

from nccl_inspector.controller.children import Children, NoAnswerError
from nccl_inspector.controller.job_survey import stored_ns
from nccl_inspector.controller.queue import QUEUED_MAX, USER_QUEUED_MAX, Entry, Queue
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.accounting import Row, identity
from nccl_inspector.slurm.ended import ask_ended
from nccl_inspector.slurm.values import moment, number, optional, plain
from nccl_inspector.summary.directory import written
from nccl_inspector.summary.job_objects import object_store, written_objects
from nccl_inspector.system.parallel import in_parallel

SLICE_S = 3600.0  # the span of one question to accounting
SLICES_MAX = 3  # in each pass
GO_ON_S = 40.0  # no further span is begun after it: an object store is asked about each job
ADDED_MAX = 4000  # ends, in each pass
FIRST_BACK_S = 86400.0  # at the very first start
BACK_MAX_S = 7 * 86400.0
AGAIN_S = 1800.0  # between two rounds
AGAIN_FOR_MORE_S = 180.0  # if there was no room for all
# How far the search stays behind the clock: a newer end may still come into the queue by itself.
BEHIND_S = 900.0
# This span is asked about once more: an end can be late in accounting.
OVERLAP_S = 2 * 3600.0
_CODES = re.compile("[0-9]{1,3}:[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Slice:
    """The lost ends of one span of time."""

    from_s: float
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class FoundEnds:
    """What one look at accounting found, up to `until_s`; `problem`: why it went no further."""

    slices: tuple[Slice, ...]
    until_s: float
    problem: str = ""


def _entry(rows: Sequence[Row]) -> Entry | None:
    """Return the end of a job's last attempt, from all rows that accounting has for the job.

    None: the rows do not have a job id or an end.
    """
    row = max(rows, key=lambda one: moment(one["End"]) or 0)
    ids, end_s = identity(row), moment(row["End"])
    if not isinstance(ids["job_id"], int) or end_s is None:
        return None
    task, leader = ids.get("array_task_id"), ids.get("het_job_id")
    return Entry(
        file="", tries=0, job_id=ids["job_id"], restart=number(row.get("Restarts", "")) or 0,
        queued_s=float(end_s), cluster=optional(row["Cluster"]), name=plain(row["JobName"]),
        nodelist=optional(row["NodeList"]),
        exit_code=row["ExitCode"] if _CODES.fullmatch(row["ExitCode"]) else "",
        het_job_id=leader if isinstance(leader, int) else None,
        array_task="" if task is None else f"{ids['array_job_id']}_{task}",
        uid=number(row["UID"]),
    )  # fmt: skip


def ends_of(rows: Iterable[Row], known: Collection[int]) -> list[Entry]:
    """Return one end for each job in accounting's rows, without the jobs that are known."""
    of_job: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_job[row["JobIDRaw"]].append(row)
    found = (_entry(its) for its in of_job.values())
    return [one for one in found if one and one.job_id not in known and one.leader not in known]


def without_report(ends: Sequence[Entry], config: Config) -> list[Entry]:
    """Return the ends of attempts that have summaries and no stored report.

    Raises:
        InspectorError, OSError: the object store, if the site has one, cannot be asked.
    """
    objects, job_ids = object_store(config), [one.job_id for one in ends]
    files = written_objects(objects, job_ids) if objects else written(job_ids, config.report_dir)
    measured = [one for one in ends if files[one.job_id]]
    stored = in_parallel(
        partial(stored_ns, store_dir=config.store_dir), [one.leader for one in measured]
    )
    found = []
    for one, reports in zip(measured, stored, strict=True):
        its = files[one.job_id]
        if isinstance(its, InspectorError) or isinstance(reports, InspectorError):
            continue
        attempts = {file.attempt for file in its} - reports.keys()
        found += [replace(one, restart=attempt) for attempt in sorted(attempts)]
    return found


def find_lost(config: Config, from_s: float, to_s: float, known: Collection[int]) -> FoundEnds:
    """Return the ends without a report in a span of time (Unix seconds). A child does this.

    `known`: jobs that are in the queue or were set aside.
    """
    slices: list[Slice] = []
    at_s, sacct = from_s, config.scontrol.with_name("sacct")
    go_on_s = time.monotonic() + GO_ON_S
    while at_s < to_s and len(slices) < SLICES_MAX and (not slices or time.monotonic() < go_on_s):
        end_s = min(at_s + SLICE_S, to_s)
        rows, why = ask_ended(sacct, at_s, end_s)
        if why:
            return FoundEnds(tuple(slices), at_s, why)
        try:
            ends = without_report(ends_of(rows, known), config)
        except InspectorError as err:
            return FoundEnds(tuple(slices), at_s, str(err))
        except OSError as err:
            where = err.filename or config.report_dir
            return FoundEnds(tuple(slices), at_s, f"{where}: {err.strerror}")
        slices.append(Slice(at_s, tuple(ends)))
        at_s = end_s
    return FoundEnds(tuple(slices), at_s)


def _in_turns(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of all users in turns; each user's oldest come first."""
    of_user: dict[int | None, list[Entry]] = defaultdict(list)
    for one in sorted(entries, key=lambda one: one.queued_s):
        of_user[one.uid].append(one)
    return [one for one in chain.from_iterable(zip_longest(*of_user.values())) if one]


def choose(
    entries: Iterable[Entry], queued: Mapping[int | None, int], most: int = ADDED_MAX
) -> list[Entry]:
    """Return the ends for which there is room in the queue; `queued`: the entries of each user."""
    room = min(most, max(0, QUEUED_MAX - sum(queued.values())))
    mine = dict(queued)
    chosen: list[Entry] = []
    for one in _in_turns(entries):
        if len(chosen) >= room:
            break
        if mine.get(one.uid, 0) < USER_QUEUED_MAX:
            mine[one.uid] = mine.get(one.uid, 0) + 1
            chosen.append(one)
    return chosen


@dataclass(frozen=True, slots=True)
class AccountingProgress:
    """How far accounting has been searched; all times are Unix seconds.

    All ends before `settled_s` have a report or are in the queue. The present round has come to
    `scan_s`. `kept_back_s` begins the first span whose ends did not all find room; None: there is
    none.
    """

    settled_s: float
    scan_s: float
    kept_back_s: float | None = None

    def after(self, found: FoundEnds, added: Collection[Entry]) -> Self:
        """Return the progress after a search; `added`: the ends that were put into the queue."""
        whose = set(added)
        incomplete = (one.from_s for one in found.slices if not whose.issuperset(one.entries))
        kept_back_s = self.kept_back_s
        if kept_back_s is None:
            kept_back_s = next(incomplete, None)
        settled_s = found.until_s if kept_back_s is None else kept_back_s
        return replace(
            self, settled_s=max(self.settled_s, settled_s), scan_s=found.until_s,
            kept_back_s=kept_back_s,
        )  # fmt: skip


def begin_round(settled_s: float | None, now_s: float, report_days: int) -> AccountingProgress:
    """Return where a round begins; `settled_s` None: the service starts for the first time."""
    if settled_s is None or settled_s > now_s:
        settled_s = now_s - FIRST_BACK_S
    back_s = min(BACK_MAX_S, report_days * 43200.0) if report_days else BACK_MAX_S
    settled_s = max(settled_s, now_s - back_s)
    return AccountingProgress(settled_s, settled_s - OVERLAP_S)


class LostEnds:
    """Searches accounting from time to time, some hours of it at once, and queues what it finds."""

    def __init__(self, config: Config, queue: Queue, children: Children, settled_s: float | None):
        """Continue at `settled_s` (Unix seconds), where the last service stopped; None: no such.

        The first `look` begins a round.
        """
        self._config, self._queue, self._children = config, queue, children
        self._progress: AccountingProgress | None = None
        self._next_s = 0.0  # of time.monotonic()
        self.settled_s = settled_s
        self.found = 0

    def look(self, queued: Sequence[Entry], *, at_once: bool = False) -> str:
        """Queue some of the ends that are missing in the queue; return what went wrong, as text."""
        if not at_once and time.monotonic() < self._next_s:
            return ""
        now_s = time.time()
        progress = self._progress or begin_round(self.settled_s, now_s, self._config.report_days)
        known = {number for one in queued for number in (one.job_id, one.leader)}
        known |= self._queue.failed_jobs()
        to_s = now_s - BEHIND_S
        work = partial(find_lost, self._config, progress.scan_s, to_s, known)
        try:
            found = self._children.ask(work, "asks accounting for ended jobs")
        except NoAnswerError as err:
            found = FoundEnds((), progress.scan_s, str(err))
        chosen = choose((entry for one in found.slices for entry in one.entries), _held(queued))
        added = self._queue.add(chosen)
        self.found += len(added)
        progress = progress.after(found, added)
        self.settled_s = progress.settled_s
        is_over = bool(found.problem) or found.until_s >= to_s
        self._progress = None if is_over else progress
        if is_over:
            is_more = progress.kept_back_s is not None and not found.problem
            self._next_s = time.monotonic() + (AGAIN_FOR_MORE_S if is_more else AGAIN_S)
        return f"ended jobs are not looked for in accounting: {found.problem}" * bool(found.problem)


def _held(queued: Iterable[Entry]) -> Counter[int | None]:
    return Counter(one.uid for one in queued)
