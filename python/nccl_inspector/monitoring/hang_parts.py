# SPDX-License-Identifier: Apache-2.0
"""PromQL about jobs that wait: for how long, whether that is longer than usual, and for whom.

The process that all others wait for is the one that waits for nobody: it has nothing in flight. Its
victims have something in flight, because who waits for it makes others wait in other communicators.
So a process is judged over all of its communicators. How many operations it called is compared
within each of them, because stages of a pipeline rightly call different numbers.

A process is identified by node and GPU. Its series also say which rank it is in each communicator,
but not which rank of the job.
"""

from dataclasses import dataclass

from nccl_inspector.monitoring.rule_parts import ShardRule
from nccl_inspector.monitoring.site import GLOBAL, Site

# A wait that counts at all, as a part of `hung_seconds`. Counts are as old as the last write of
# their process, so they show a wait up to two intervals later than the age at which we alert.
_BEGUN = 0.5
# A job starts until a communicator has completed so many operations: compiling, and what one rank
# prepares for all, take minutes before that.
_STARTED_OPERATIONS = 10
_SILENT_S = 60  # a process that wrote so much earlier than another one of its job is stopped
_LOST_WINDOW = "15m"  # how long ago a dead process may have published
_IO_WINDOW = "2m"  # a file system may stand for a write or two
_NAMED, _LISTED = 3, 8  # processes in the summary, and in the description
# How many processes of a job that have nothing in flight a shard tells the global server of.
_IDLE = 3

_CALLED = "nccl_communicator_operations_enqueued_total"
_STARTED = "nccl_communicator_operations_started_total"
_COMPLETED = "nccl_communicator_operations_completed_total"
_PROGRESS = "nccl_communicator_last_progress_timestamp_seconds"
_WRITTEN = "nccl_inspector_last_write_timestamp_seconds"
_ENDED = "job:nccl_collective_inflight_seconds:ended"
_COLLECTIVE, _P2P = "nccl_collective_inflight_seconds", "nccl_p2p_inflight_seconds"
_IO = "nccl_inspector_quiet_io_bytes_per_second"
_FLIGHT = '__name__=~"nccl_(collective|p2p)_inflight_seconds"'
# What shards record.
_S_WAIT, _S_P2P = (
    "shard:nccl_collective_inflight_seconds:max",
    "shard:nccl_p2p_inflight_seconds:max",
)
_S_HUNG = "shard:nccl_collective_inflight_seconds:hung"
_S_MOST, _S_IDLE = (
    f"shard:{_CALLED.removesuffix('_total')}:most",
    f"shard:{_CALLED.removesuffix('_total')}:idle",
)
_S_LATEST, _S_WRITTEN = f"shard:{_PROGRESS}:max", f"shard:{_WRITTEN}:max"
_S_ENDED = "shard:nccl_collective_inflight_seconds:ended"
_S_IO = f"shard:{_IO}:max"


@dataclass(frozen=True, slots=True)
class HangParts:
    """PromQL of the rules, by job, and questions of the alert's texts.

    Questions have %[1]q and %[2]q for cluster and job. A question about processes has one series
    for each of them, and its value is for how long others have waited in a communicator of it.
    """

    waited: str  # age of the oldest collective in flight
    waited_p2p: str  # age of the oldest Send or Recv in flight
    still: str  # for how long nothing has completed, as of the last write
    waits_ended: str  # how long the longest wait was that has just ended
    stills_ended: str  # how long nothing had completed before the latest completion
    busy: str  # bytes a second of processes that called nothing, where that is much
    named: str = ""  # a few processes that died or did not come
    died: str = ""
    absent: str = ""  # processes that did not come and have nothing in flight
    present: str = ""  # processes that came, if fewer than those that did not
    silent: str = ""  # processes with nothing in flight while more wait in Sends and Recvs
    queued: str = ""  # processes that called it, and their GPUs have not begun it
    shared: str = ""  # processes that did not come and share a GPU, so that they may wait elsewhere
    behind: str = ""  # how many called fewer operations than others
    equal: str = ""  # how many wait where all that publish called as many
    files: str = ""  # processes that called nothing, and read or write
    first: str = ""  # there is nothing to compare the wait with


@dataclass(frozen=True, slots=True)
class _Names:
    """Lists of labels as they stand after `by` and `on`, and the selector of what is asked."""

    job: str
    node: str
    gpu: str
    comm: str
    of: str  # selector, in the braces of a metric
    begun: str  # age in seconds

    def __call__(self, metric: str, *more: str) -> str:
        """Return a selector; `metric` may be a matcher of names."""
        name, *words = ("", metric) if "=" in metric else (metric,)
        inner = ", ".join((*words, *more, *([self.of] if self.of else ())))
        return f"{name}{{{inner}}}" if inner else name


def _names(site: Site, *, asked: bool) -> _Names:
    """Return the names in a rule about all jobs, or in a question about one."""
    cluster, job, node = (site[f"label_{name}"] for name in ("cluster", "job", "node"))
    begun = f"{_BEGUN * float(site['hung_seconds']):g}"
    if asked:
        of = f"{cluster}=%[1]q, {job}=%[2]q"
        return _Names("", node, f"{node}, gpu", "comm", of, begun)
    both = f"{cluster}, {job}"
    return _Names(both, f"{both}, {node}", f"{both}, {node}, gpu", f"{both}, comm", "", begun)


def _age(own: str, agents: str, by: _Names) -> str:
    """Return the age of the oldest operation of each job.

    The agents' series need no writer in the job. A node whose processes are all stopped, as those
    of a suspended job, does not count.
    """
    alive = 'nccl_inspector_job_processes{state="running"} > 0'
    return f"max by ({by.job}) ({own}\nor {agents} and on ({by.node}) {alive})"


def _waited(site: Site, by: _Names) -> str:
    """Return the age of the oldest collective of each job, but not of one that just starts."""
    age = _age(_COLLECTIVE, "nccl_inspector_job_inflight_seconds", by)
    starts = f"max by ({by.job}) ({_COMPLETED}) < {_STARTED_OPERATIONS}"
    return f"({age}\nunless ({age} < {site['start_seconds']} and on ({by.job}) {starts}))"


def _waits_ended(site: Site, by: _Names) -> str:
    """Return the waits that have ended since the last evaluation.

    The same communicator has gone on. After a restart there is another one, so the hang before it
    does not become a usual wait.
    """
    offset = f"offset {site['alert_interval']}"
    return (
        f"max by ({by.job}) ({_COLLECTIVE} {offset} > {_COLLECTIVE}\n"
        f"and {_COMPLETED} > {_COMPLETED} {offset}) > {by.begun}"
    )


def _latest(site: Site, by: _Names) -> str:
    """Return when a job last did something; now, if it has just called something.

    Operations that are counted without a time are called, but nobody sees them complete.
    """
    # Not changes(): from Prometheus 3.0 on a range of two scrapes has only the later one of them.
    before = f"{_CALLED} offset {site['alert_interval']}"
    calls = f"{_CALLED} > {before} or {_CALLED} unless {before}"
    return f"max by ({by.job}) (({calls}) * 0 + time()\nor {_PROGRESS})"


def _busy(series: str, site: Site, by: _Names) -> str:
    """Return the jobs of which a process called nothing and is busy with files."""
    return f"max by ({by.job}) (max_over_time({series}[{_IO_WINDOW}])) > {site['io_bytes']}"


def _first(site: Site, by: _Names, died: str) -> str:
    """Return something if the job has not waited before, and nobody is known to be dead."""
    ended = f"max_over_time({by(_ENDED)}[{site['usual_window']}])"
    return f"absent({ended})" + (f" unless on () {died}" if died else "")


def _difference(later: str, earlier: str, by: _Names) -> str:
    return f"(max by ({by.job}) ({later}) - max by ({by.job}) ({earlier}))"


def _waiting(series: str, by: _Names) -> str:
    """Return for how long each communicator has waited."""
    return f"max by ({by.comm}) ({series}) > {by.begun}"


def _idle(by: _Names) -> str:
    """Return the processes that have nothing in flight.

    One that no longer writes, because it is stopped, may have had something in flight for a moment
    when it last wrote.
    """
    flight = f"max by ({by.gpu}) ({by(_FLIGHT)})"
    written, newest = f"max by ({by.gpu}) ({by(_WRITTEN)})", f"max by ({by.job}) ({by(_WRITTEN)})"
    silent = f"{written} < on ({by.job}) group_left () {newest} - {_SILENT_S}"
    return f"({flight} == 0 or {flight} < {by.begun} and {silent})"


def _fewer(called: str, most: str, by: _Names) -> str:
    return f"{called} < on ({by.comm}) group_left () max by ({by.comm}) ({most})"


def _of_each(found: str, waiting: str, by: _Names) -> str:
    """Return one series for each process: that of the communicator that has waited longest."""
    return f"topk by ({by.gpu}) (1, ({waiting}) * on ({by.comm}) group_right () ({found}) ^ 0)"


def _questions(site: Site) -> dict[str, str]:
    by = _names(site, asked=True)
    called, waiting = by(_CALLED), _waiting(by(_COLLECTIVE), by)
    fewer, mixed = _fewer(called, called, by), by("nccl_p2p_operations_total")
    idle = f"and on ({by.gpu}) {_idle(by)}"
    # In a communicator with Sends and Recvs, ranks rightly call different numbers.
    absent = _of_each(f"({fewer} or {called} and on (comm) {mixed}) {idle}", waiting, by)
    lost = by("nccl_inspector_job_processes", 'state="lost"')
    gone = f"last_over_time({called}[{_LOST_WINDOW}]) unless {called}"
    died = _of_each(f"{gone} and on ({by.node}) {lost} > 0", _waiting(by(_FLIGHT), by), by)
    came = f"max by ({by.gpu}) ({by(_COLLECTIVE)}) > {by.begun}"
    few = f"and on () count({absent}) <= on () count({came})"
    kernels = f"{by(_STARTED)} - {by(_COMPLETED)}"
    queued = (
        f"{called} and on (comm) max by (comm) ({kernels}) > 0"
        f" and on ({by.gpu}) sum by ({by.gpu}) ({kernels}) == 0"
        f" and on ({by.gpu}) max by ({by.gpu}) ({by(_FLIGHT)}) > {by.begun}"
    )
    receiving = _waiting(by(_P2P), by)
    silent = _of_each(f"{called} {idle}", receiving, by)
    some = f"count(max by ({by.gpu}) ({by(_P2P)}) > {by.begun})"
    here = f"and on ({by.gpu}, comm, rank) {by(_COLLECTIVE)} == 0"
    shared = f"{fewer} {here} and on ({by.gpu}, comm) count by ({by.gpu}, comm) ({called}) > 1"
    return {
        "named": f"topk({_NAMED}, {died} or {absent} {few})",
        "died": f"topk({_LISTED}, {died})",
        "absent": f"topk({_LISTED}, {absent} {few})",
        "present": f"topk({_LISTED}, {came} and on () {absent}"
        f" unless on () count({absent}) <= on () count({came}))",
        "silent": f"topk({_NAMED}, {silent} and on () count({silent}) <= on () {some})",
        "queued": f"topk({_LISTED}, {_of_each(queued, waiting, by)})",
        "shared": f"topk({_LISTED}, ({waiting}) * on (comm) group_right () ({shared}) ^ 0)",
        "behind": f"count({fewer} and on (comm) {waiting} unless on (comm) {mixed})",
        "files": f"topk({_LISTED}, {by(_IO)} > {site['io_bytes']})",
        "first": _first(site, by, died),
        "equal": f"count({called} and on (comm) {waiting} unless on (comm) {mixed})",
    }


def _of_nodes(site: Site) -> HangParts:
    by = _names(site, asked=False)
    before = f"{_PROGRESS} offset {site['alert_interval']}"
    return HangParts(
        waited=_waited(site, by),
        waited_p2p=_age(_P2P, "nccl_inspector_job_p2p_inflight_seconds", by),
        still=_difference(_WRITTEN, _latest(site, by), by),
        waits_ended=_waits_ended(site, by),
        # What a new communicator completes first says nothing of a pause: see _waits_ended().
        stills_ended=_difference(f"{_PROGRESS} and {before}", before, by),
        busy=_busy(_IO, site, by),
        **_questions(site),
    )


def _of_shards(site: Site) -> HangParts:
    by, one = _names(site, asked=False), _names(site, asked=True)
    waiting = _waiting(one(_S_HUNG), one)
    absent = _of_each(_fewer(one(_S_IDLE), one(_S_MOST), one), waiting, one)
    return HangParts(
        waited=f"max by ({by.job}) ({_S_WAIT})",
        waited_p2p=f"max by ({by.job}) ({_S_P2P})",
        still=_difference(_S_WRITTEN, _S_LATEST, by),
        waits_ended=f"max by ({by.job}) ({_S_ENDED})",
        stills_ended=_difference(_S_LATEST, f"{_S_LATEST} offset {site['alert_interval']}", by),
        busy=_busy(_S_IO, site, by),
        first=_first(site, one, ""),
        named=f"topk({_NAMED}, {absent})",
        absent=f"topk({_LISTED}, {absent})",
    )


def hang_parts(site: Site) -> HangParts:
    """Return the parts for a server that has all series of the nodes, or for a global one."""
    return _of_shards(site) if site["role"] == GLOBAL else _of_nodes(site)


def shard_hang_rules(site: Site) -> list[ShardRule]:
    """Return the recording rules of a shard about waits."""
    by, nodes = _names(site, asked=False), _of_nodes(site)
    hung = f"max by ({by.comm}, comm_name) ({_COLLECTIVE}) > {by.begun}"
    idle = f"{_difference_of_gpus(by)} > {by.begun} and on ({by.gpu}) {_idle(by)}"
    return [
        ShardRule(_S_WAIT, f"{nodes.waited} > {by.begun}"),
        ShardRule(_S_P2P, f"{nodes.waited_p2p} > {by.begun}"),
        ShardRule(_S_LATEST, _latest(site, by)),
        ShardRule(_S_WRITTEN, f"max by ({by.job}) ({_WRITTEN})"),
        ShardRule(_S_ENDED, nodes.waits_ended),
        ShardRule(_S_IO, f"max by ({by.job}) ({_IO}) > {site['io_bytes']}"),
        ShardRule(_S_HUNG, hung),
        ShardRule(_S_MOST, f"max by ({by.comm}) ({_CALLED} and on ({by.comm}) {hung})"),
        ShardRule(_S_IDLE, f"{_CALLED} and on ({by.gpu}) topk by ({by.job}) ({_IDLE}, {idle})"),
    ]


def _difference_of_gpus(by: _Names) -> str:
    """Return for how long each process had completed nothing when it last wrote."""
    return f"max by ({by.gpu}) ({_WRITTEN}) - max by ({by.gpu}) ({_PROGRESS})"
