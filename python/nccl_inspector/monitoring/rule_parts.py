# SPDX-License-Identifier: Apache-2.0
"""What the rules about jobs are made of: series of the nodes, or what shards have recorded of them.

A shard scrapes some of the nodes and records few series for each job (`shard:...`). They can be put
together again: sums, counts, highest and lowest values. A global server takes these series and has
no other. On one server that scrapes all nodes nothing is recorded in between. So the template of
the rules is the same for both, and only the parts here differ.

Communicators within one node (`n_nodes="1"`) are whole on one shard, which judges them itself:
there are as many as nodes.
"""

from dataclasses import dataclass

from nccl_inspector.monitoring.expressions import SYNCHRONOUS
from nccl_inspector.monitoring.site import GLOBAL, Site

# What a global server asks its shards for. Rules of a shard with other names stay there.
FEDERATED = "shard:nccl_.+"
_ONE_NODE, _SEVERAL_NODES = 'n_nodes="1"', 'n_nodes!="1"'
# How many late ranks of communicators within one node a shard reports for each job.
_LATE_RANKS = 3
_RANK_LATE, _RANK_WAIT = "rank:nccl_collective_late:ratio", "rank:nccl_collective_wait:ratio"
_P2P_BUSY = "nccl_p2p_busy_seconds_total"
_RANK_KEPT = "rank:nccl_collective_kept:ratio"
_POINTS = "shard:nccl_collective_seconds:points"
_SHARD_WAIT = "shard:nccl_collective_wait:ratio"


@dataclass(frozen=True, slots=True)
class RuleLabels:
    """Lists of labels, as they stand after `by` and `on`."""

    job: str
    bucket: str  # what is compared with its own past; see the template of the rules
    rank: str
    gpu: str  # a process
    kind: str  # operations with comparable times
    alike: str  # the same of all communicators of one name and size


@dataclass(frozen=True, slots=True)
class RuleParts:
    """PromQL that the templates of rules and alerts fill in."""

    bandwidths: (
        str  # the highest of each communicator, or for `n_nodes="1"` also the median of some
    )
    busy: str
    synchronous_busy: str
    operations: str
    throughput: str
    late: str
    wait: str
    kept: str
    late_gpu: str
    transfer: str  # busy time without waiting


@dataclass(frozen=True, slots=True)
class ShardRule:
    """One recording rule of a shard."""

    record: str
    expr: str
    point: str = ""  # value of the label `point`


def rule_labels(site: Site) -> RuleLabels:
    """Return the lists of labels with the site's names."""
    job = f"{site['label_cluster']}, {site['label_job']}"
    return RuleLabels(
        job=job,
        bucket=f"{job}, comm_name, n_nodes, nranks, collective, message_size",
        rank=f"{job}, {site['label_node']}, gpu, rank, comm, comm_name",
        gpu=f"{job}, {site['label_node']}, gpu",
        kind=f"{job}, comm, collective, message_size, algo_proto",
        alike=f"{job}, comm_name, n_nodes, nranks, collective, message_size, algo_proto",
    )


def _rate(metric: str, labels: str, site: Site, window: str = "rate_window") -> str:
    selector = f"{{{labels}}}" if labels else ""
    return f"rate({metric}{selector}[{site[window]}])"


def _average(gauge: str, labels: str, site: Site) -> str:
    selector = f"{{{labels}}}" if labels else ""
    return f"avg_over_time({gauge}{selector}[{site['rate_window']}])"


def _done(labels: str, site: Site) -> str:
    return _rate("nccl_collective_operations_total", labels, site, "late_window")


def _busy(labels: str, site: Site) -> str:
    return _rate("nccl_collective_busy_seconds_total", labels, site, "late_window")


def _seconds(labels: str, site: Site) -> str:
    """Return the mean time of an operation. A rank that did none in the window has no mean."""
    return f"({_busy(labels, site)} / ({_done(labels, site)} > 0))"


def _usual(points: str, counted: str, by: RuleLabels) -> str:
    """Return the usual time of each kind of operation, where there are times of three ranks.

    `points` gives times of all ranks, `counted` a series for each of these.
    """
    counts = f"count by ({by.kind}) ({counted})"
    return f"(quantile by ({by.kind}) (0.5, {points})\nand {counts} >= 3)"


def _late(usual: str, done: str, busy: str, by: RuleLabels) -> str:
    """Return for what part of the time others wait for a rank, by rank.

    A rank that is faster than usual came late: its operations would usually take longer than it was
    in them. `done` and `busy` are of the ranks that are judged. Prometheus evaluates each selector
    anew where it stands, and joins of all ranks are what takes it long: there are few of both.
    """
    late = f"{usual}\n* on ({by.kind}) group_right () ({done} > 0)\n- {busy}"
    return f"sum by ({by.rank}) ({late})"


def _wait(seconds: str, done: str, busy: str, by: RuleLabels) -> str:
    """Return for what part of the time a rank is in collectives beyond the usual transfer.

    The transfer is that of the rank that came last; usual is the median of such communicators.
    """
    usual = f"quantile by ({by.alike}) (0.5, min by ({by.alike}, comm) ({seconds}))"
    return (
        f"sum by ({by.rank}) (clamp_min({busy}\n- {usual}\n"
        f"* on ({by.alike}) group_right () ({done} > 0), 0))"
    )


def _excuse(wait: str, late: str, site: Site, by: RuleLabels) -> str:
    """Return for what part of the time a process is kept by others, where it is not late itself.

    It waits in collectives, or has slow transfers there, or is in Sends and Recvs for longer than
    another process of its job: a stage of a pipeline waits for the stages before it.
    """
    p2p = _in_p2p(site, by)
    more = f"{p2p} - on ({by.job}) group_left () min by ({by.job}) ({p2p})"
    return f"sum by ({by.gpu}) ({wait} unless {late} > {wait}\nor {more})"


def _in_p2p(site: Site, by: RuleLabels) -> str:
    """Return for what part of the time a process is in Sends and Recvs.

    The parts of a group have the time of the group each, so that of pairs is taken off once.
    """
    parts, groups = (
        f"sum by ({by.gpu}) ({_rate(_P2P_BUSY, labels, site, 'late_window')})"
        for labels in ('p2p_operation=~"Send|Recv"', 'p2p_operation="SendRecv"')
    )
    return f"({parts} - {groups} or {parts})"


def _kept(site: Site, by: RuleLabels) -> str:
    """Return for what part of the time a rank is kept outside of one of its communicators.

    Its process waits in others, has slow transfers there, or is in Sends and Recvs.
    """
    waits = f"({_RANK_WAIT} unless {_RANK_LATE} > {_RANK_WAIT} or {_RANK_LATE} * 0)"
    all_of_it = f"sum by ({by.gpu}) ({waits}\nor {_in_p2p(site, by)})"
    return f"{_RANK_LATE} * 0 + on ({by.gpu}) group_left () {all_of_it}\n- {waits}"


def _late_where_not_kept(by: RuleLabels) -> str:
    """Return for what part of the time others wait for a process, by communicator.

    It may be kept as its peers there are: so stages of a pipeline wait for each other, and each
    stage does that as long in each replica. If it is kept for longer, it is late by that.
    """
    usual = f"quantile by ({by.job}, comm) (0.5, {_RANK_KEPT})"
    more = f"clamp_min({_RANK_KEPT} - on ({by.job}, comm) group_left () {usual}, 0)"
    return f"clamp_min({_RANK_LATE}\n- {more}, 0)"


def _late_gpu_of_shards(excuse: str, by: RuleLabels) -> str:
    """Return for what part of the time others wait for a process.

    `excuse`: for what part it waits itself, or has slow transfers. It is not known for its peers.
    """
    own = f"sum by ({by.gpu}) (clamp_min({_RANK_LATE}, 0))"
    return f"({own}\n- ({excuse})\nor {own})"


def _late_gpu(by: RuleLabels) -> str:
    """Return for what part of the time others wait for a process: at most what some process waits.

    The lower of two values: both are series of the process, told apart by a label.
    """
    own = f"sum by ({by.gpu}) ({_late_where_not_kept(by)})"
    most = f"max by ({by.job}) (sum by ({by.gpu}) ({_RANK_WAIT}))"
    most = f"sum by ({by.gpu}) ({_RANK_LATE}) * 0 + on ({by.job}) group_left () {most}"
    return f'min by ({by.gpu}) ({own}\nor label_replace({most}, "most", "1", "", ""))'


def _transfer(points: str, done: str, by: RuleLabels) -> str:
    """Return the time that ranks would be busy if none waited: that of the last one for each."""
    return f"min by ({by.kind}) ({points})\n* sum by ({by.kind}) ({done})"


def _of_nodes(site: Site, by: RuleLabels) -> RuleParts:
    labels = SYNCHRONOUS
    seconds, done, busy = _seconds(labels, site), _done(labels, site), _busy(labels, site)
    throughput = _average("nccl_inspector_job_throughput", "", site)
    return RuleParts(
        bandwidths=f"max by ({by.bucket}, comm) ({_average('nccl_bus_bandwidth_gbs', '', site)})",
        busy=_rate("nccl_collective_busy_seconds_total", "", site),
        synchronous_busy=busy,
        operations=_rate("nccl_communicator_operations_completed_total", "", site),
        throughput=f"avg by ({by.job}, unit) ({throughput})",
        late=_late(_usual(seconds, f"{done} > 0", by), done, busy, by),
        wait=_wait(seconds, done, busy, by),
        kept=_kept(site, by),
        late_gpu=_late_gpu(by),
        transfer=_transfer(seconds, done, by),
    )


def _of_shards(by: RuleLabels) -> RuleParts:
    unit = f"{by.job}, unit"
    points, busy = _POINTS, "shard:nccl_collective_busy_seconds:rate"
    done = "shard:nccl_collective_operations:last_rank"
    last = done, f"shard:nccl_collective_seconds:last_rank * {done}"
    return RuleParts(
        bandwidths=(
            f"max by ({by.bucket}, comm) (shard:nccl_bus_bandwidth_gbs:max)\n"
            "or shard:nccl_bus_bandwidth_gbs:median"
        ),
        busy=busy,
        synchronous_busy="shard:nccl_collective_busy_seconds:synchronous",
        operations="shard:nccl_operations:rate",
        throughput=(
            f"sum by ({unit}) (shard:nccl_throughput:sum)\n"
            f"/ sum by ({unit}) (shard:nccl_throughput:count)"
        ),
        late=(
            f"{_late(_usual(points, points, by), *last, by)}\n"
            f"or sum by ({by.rank}) (shard:nccl_collective_late:ratio)"
        ),
        wait="",
        kept="",
        late_gpu=_late_gpu_of_shards(f"sum by ({by.gpu}) ({_SHARD_WAIT})", by),
        transfer=(
            f"{_transfer(points, 'shard:nccl_collective_operations:rate', by)}\n"
            "or shard:nccl_collective_busy_seconds:transfer"
        ),
    )


def rule_parts(site: Site) -> RuleParts:
    """Return the parts for a server that has all series of the nodes, or for a global one."""
    by = rule_labels(site)
    return _of_shards(by) if site["role"] == GLOBAL else _of_nodes(site, by)


def _last_ranks(site: Site, by: RuleLabels) -> list[ShardRule]:
    """Return the rules about one rank of each communicator of several nodes, which may be late.

    It is the rank that the others on this shard wait for most. The rank that was chosen before
    stays until they wait for another one that is late, and more than twice as long. If the choice
    followed every small difference, the same rank would not be late for long enough for an alert,
    and each new rank would make new series. On a shard with one node of the communicator, the rank
    stands for a node that is late as a whole.
    """
    labels = f"{SYNCHRONOUS}, {_SEVERAL_NODES}"
    seconds, done, busy = _seconds(labels, site), _done(labels, site), _busy(labels, site)
    comm, both = f"{by.job}, comm, comm_name", f"{by.rank}, collective, message_size, algo_proto"
    late, chosen = "rank:nccl_collective_late:several_nodes", "rank:nccl_collective_late:chosen"
    before, limit = f"and on ({by.rank}) {chosen}", site["late_ratio"]

    def of_chosen(expr: str) -> str:
        return f"max by ({both}) ({expr}\nand on ({by.rank}) {chosen})"

    return [
        # The middle one of these times is the median of all, or the mean of two.
        ShardRule(late, _late(f"quantile by ({by.kind}) (0.5, {_POINTS})", done, busy, by)),
        ShardRule(
            chosen,
            f"topk by ({comm}) (1,\n2 * ({late} > {limit} {before})\n"
            f"or clamp_min({late} {before}, {limit} / 2)\nor {late})",
        ),
        ShardRule("shard:nccl_collective_seconds:last_rank", of_chosen(seconds)),
        ShardRule("shard:nccl_collective_operations:last_rank", of_chosen(f"{done} > 0")),
    ]


def _late_within_nodes(site: Site, by: RuleLabels) -> list[ShardRule]:
    """Return the rules about late ranks of communicators within one node: a few for each job.

    As in _last_ranks(), those that were named before stay until another one is twice as late.
    """
    labels = f"{SYNCHRONOUS}, {_ONE_NODE}"
    seconds, done, busy = _seconds(labels, site), _done(labels, site), _busy(labels, site)
    usual = _usual(seconds, f"{done} > 0", by)
    late, named = "rank:nccl_collective_late:one_node", "shard:nccl_collective_late:ratio"
    first = f"2 * ({late} and on ({by.rank}) {named})\nor {late}"
    return [
        ShardRule(late, f"{_late(usual, done, busy, by)}\n> {site['late_ratio']}"),
        ShardRule(named, f"{late} and on ({by.rank}) topk by ({by.job}) ({_LATE_RANKS},\n{first})"),
        *_waits_within_nodes(_wait(seconds, done, busy, by), site, by),
    ]


def _waits_within_nodes(waits: str, site: Site, by: RuleLabels) -> list[ShardRule]:
    """Return the rules of how long named ranks wait themselves, in communicators within nodes."""
    wait, late = "rank:nccl_collective_wait:one_node", "rank:nccl_collective_late:one_node"
    named = "rank:nccl_collective_late:chosen or shard:nccl_collective_late:ratio"
    excuse = f"{_excuse(wait, late, site, by)} > {site['late_ratio']} / 4"
    return [
        ShardRule(wait, waits),
        ShardRule(_SHARD_WAIT, f"{excuse}\nand on ({by.gpu}) ({named})"),
    ]


def _points(site: Site, by: RuleLabels) -> list[ShardRule]:
    """Return the rules of the times that stand for all ranks here; up to three ranks: their own."""
    labels = f"{SYNCHRONOUS}, {_SEVERAL_NODES}"
    seconds = _seconds(labels, site)
    ranks = f"count by ({by.kind}) ({_done(labels, site)} > 0)"
    return [
        ShardRule(_POINTS, f"min by ({by.kind}) ({seconds})", "min"),
        ShardRule(_POINTS, f"max by ({by.kind}) ({seconds})\nand {ranks} >= 2", "max"),
        ShardRule(
            _POINTS, f"quantile by ({by.kind}) (0.5, {seconds})\nand {ranks} >= 3", "median"
        ),
    ]  # fmt: skip


def shard_rules(site: Site) -> list[ShardRule]:
    """Return the recording rules of a shard, in the order in which they use each other."""
    by, nodes = rule_labels(site), _of_nodes(site, rule_labels(site))
    several, one = f"{SYNCHRONOUS}, {_SEVERAL_NODES}", f"{SYNCHRONOUS}, {_ONE_NODE}"
    seconds, done = _seconds(one, site), _done(one, site)
    gbs = {
        labels: f"max by ({by.bucket}, comm) ({_average('nccl_bus_bandwidth_gbs', labels, site)})"
        for labels in (_ONE_NODE, _SEVERAL_NODES)
    }
    throughput = _average("nccl_inspector_job_throughput", "", site)
    return [
        ShardRule("shard:nccl_bus_bandwidth_gbs:max", gbs[_SEVERAL_NODES]),
        ShardRule(
            "shard:nccl_bus_bandwidth_gbs:median",
            f"quantile by ({by.bucket}) (0.5,\n{gbs[_ONE_NODE]})",
        ),
        ShardRule(
            "shard:nccl_collective_busy_seconds:rate", f"sum by ({by.bucket}) ({nodes.busy})"
        ),
        ShardRule(
            "shard:nccl_collective_busy_seconds:synchronous",
            f"sum by ({by.job}) ({nodes.synchronous_busy})",
        ),
        ShardRule("shard:nccl_operations:rate", f"sum by ({by.job}) ({nodes.operations})"),
        ShardRule("shard:nccl_throughput:sum", f"sum by ({by.job}, unit) ({throughput})"),
        ShardRule("shard:nccl_throughput:count", f"count by ({by.job}, unit) ({throughput})"),
        *_points(site, by),
        ShardRule(
            "shard:nccl_collective_operations:rate", f"sum by ({by.kind}) ({_done(several, site)})"
        ),
        *_last_ranks(site, by),
        *_late_within_nodes(site, by),
        ShardRule(
            "shard:nccl_collective_busy_seconds:transfer",
            f"sum by ({by.job}) ({_transfer(seconds, done, by)})",
        ),
    ]
