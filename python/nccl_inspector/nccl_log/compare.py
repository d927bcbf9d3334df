# SPDX-License-Identifier: Apache-2.0
"""What no single line says: findings from the facts of all processes together."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nccl_inspector.model.card import INFO, Severity
from nccl_inspector.model.wording import cut_list, number
from nccl_inspector.nccl_log.identities import Identities, Identity, said_names
from nccl_inspector.nccl_log.kept import Log
from nccl_inspector.nccl_log.process_log import ProcessLog
from nccl_inspector.nccl_log.torch_lines import Operation, TorchGroup, WorkCounts

COMMUNICATORS_MANY = 50  # of one process
_INIT_SLOW_S = 30.0
_MANY_SHOWN = 4
_SOCKET = "Socket"
_SOCKET_WAY = "NET/Socket"
# What may well differ between processes.
_OF_PROCESS = frozenset(
    f"NCCL_{name}"
    for name in ("DEBUG_FILE", "HOSTID", "COMM_ID", "TOPO_DUMP_FILE", "GRAPH_DUMP_FILE")
)
# Collectives in which all ranks have the same number of elements.
_OF_ONE_SIZE = frozenset({"ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
_LOCAL_INTERFACES = ("lo", "docker", "virbr", "veth", "cni", "podman")


@dataclass(frozen=True, slots=True)
class Compared:
    """A finding: the id of its rule, who it is about, and its figures as text."""

    rule: str
    who: tuple[Identity, ...]
    detail: str
    severity: Severity | None = None  # None: that of the rule


@dataclass(slots=True)
class _Job:
    """The processes that are compared, each with its identity."""

    members: list[tuple[Identity, ProcessLog]]
    hosts: set[str]
    log: Log
    identities: Identities
    partial: bool
    found: list[Compared] = field(default_factory=list)

    def who(self, chosen: Sequence[ProcessLog]) -> tuple[Identity, ...]:
        """Return the identities of some of the processes."""
        wanted = {id(one) for one in chosen}
        return tuple(who for who, one in self.members if id(one) in wanted)


def compare(log: Log, identities: Identities, *, partial: bool = False) -> list[Compared]:
    """Return the findings; `partial`: only a part of the log was read, so lines may be missing."""
    leaders = [(identities.of(at), log.processes[at]) for at in identities.leaders()]
    members = [(who, one) for who, one in leaders if one.pid is not None]
    hosts = {one.host for _, one in members}
    job = _Job(members, hosts, log, identities, partial)
    judges = (
        _network, _shared_memory, _gpu_direct, _adapters, _speeds, _interface, _versions,
        _environment, _init, _init_time, _nvls, _behind, _differing, _desync, _communicators,
    )  # fmt: skip
    return [found for judge in judges for found in judge(job)]


def _is_off(value: str) -> bool:
    return value.strip() not in ("", "0")


def _network(job: _Job) -> Iterator[Compared]:
    far = [one for _, one in job.members if one.nodes > 1 or (not one.nodes and len(job.hosts) > 1)]
    on_sockets = [one for one in far if one.network == _SOCKET or one.ways.get(_SOCKET_WAY, 0)]
    asked = [
        one
        for one in on_sockets
        if _is_off(one.environment.get("NCCL_IB_DISABLE", ""))
        or one.environment.get("NCCL_NET", "").lower() == _SOCKET.lower()
    ]
    of_all = f"of {number(len(far), 'process')} that communicate between nodes"
    if asked:
        yield Compared(
            "network-chosen-slow",
            job.who(asked),
            f"{len(asked)} {of_all}: NCCL_IB_DISABLE or NCCL_NET is set",
        )
    by_choice = {id(one) for one in asked}
    silent = [one for one in on_sockets if id(one) not in by_choice]
    if silent:
        channels = sum(one.ways.get(_SOCKET_WAY, 0) for one in silent)
        by = f", with {number(channels, 'channel')}" if channels else ""
        yield Compared("network-fallback", job.who(silent), f"{len(silent)} {of_all}{by}")
    networks = Counter(one.network for one in far if one.network)
    if len(networks) > 1:
        usual = networks.most_common(1)[0][0]
        others = [one for one in far if one.network and one.network != usual]
        words = ", ".join(f"{name}: {count}" for name, count in networks.most_common(_MANY_SHOWN))
        yield Compared("network-differs", job.who(others), f"processes by network: {words}")


def _shared_memory(job: _Job) -> Iterator[Compared]:
    through = [one for _, one in job.members if one.ways.get("SHM", 0)]
    if not through:
        return
    asked = all(_is_off(one.environment.get("NCCL_P2P_DISABLE", "")) for one in through)
    channels = sum(one.ways["SHM"] for one in through)
    direct = sum(count for way, count in job.log.ways.items() if way.startswith("P2P"))
    others = f", and {direct} via P2P in all" if direct else ""
    pairs = cut_list(dict.fromkeys(pair for one in through for pair in one.host_pairs), _MANY_SHOWN)
    yield Compared(
        "shm-within-node",
        job.who(through),
        f"{number(channels, 'channel')} via SHM{others}; ranks {pairs}"
        + ("; NCCL_P2P_DISABLE is set" if asked else ""),
        INFO if asked else None,
    )


def _gpu_direct(job: _Job) -> Iterator[Compared]:
    without = [
        one
        for _, one in job.members
        if any(way.startswith("NET/IB") and not way.endswith("/GDRDMA") for way in one.ways)
        or (one.gdr_rings is False and one.network == "IB" and one.nodes > 1)
    ]
    if not without:
        return
    plain = sum(
        count
        for one in without
        for way, count in one.ways.items()
        if way.startswith("NET/IB") and not way.endswith("/GDRDMA")
    )
    direct = job.log.ways["NET/IB/GDRDMA"]
    counted = ": its rings have GDR 0"
    if plain:
        counted = f": {number(plain, 'channel')} without"
        counted += f", {direct} with in all" if direct else ""
    yield Compared("gdr-unused", job.who(without), number(len(without), "process") + counted)


def _adapters(job: _Job) -> Iterator[Compared]:
    known = [one for _, one in job.members if one.hcas and not one.hcas_cut]
    mixed = [one for one in known if {"IB", "RoCE"} <= set(one.hcas.values())]
    if mixed:
        names = ", ".join(f"{name}/{layer}" for name, layer in list(mixed[0].hcas.items())[:16])
        yield Compared("hca-layers-mixed", job.who(mixed), names)
    counts = Counter(len(one.hcas) for one in known)
    if len(counts) > 1:
        most = max(counts)
        fewer = [one for one in known if len(one.hcas) < most]
        said = ", ".join(f"{count}: {of}" for count, of in sorted(counts.items()))
        yield Compared("hcas-differ", job.who(fewer), f"processes by number of adapters: {said}")


def _speeds(job: _Job) -> Iterator[Compared]:
    fastest = max((mbps for _, one in job.members for mbps in one.speeds.values()), default=0)
    slower: dict[str, int] = {}
    whose = []
    for who, one in job.members:
        low = {f"{who.host} {name}": mbps for name, mbps in one.speeds.items() if mbps < fastest}
        slower |= low
        if low:
            whose.append(one)
    if slower:
        said = cut_list(
            (f"{name}: {mbps / 1000:g} Gb/s" for name, mbps in sorted(slower.items())), _MANY_SHOWN
        )
        yield Compared(
            "hca-speeds-differ", job.who(whose), f"{said}; others: {fastest / 1000:g} Gb/s"
        )


def _interface(job: _Job) -> Iterator[Compared]:
    if len(job.hosts) < 2:
        return
    local = [
        one for _, one in job.members
        if one.interface == "lo" or one.interface.startswith(_LOCAL_INTERFACES[1:])
    ]  # fmt: skip
    if local:
        names = ", ".join(sorted({one.interface for one in local}))
        yield Compared("bootstrap-interface", job.who(local), names)


def _versions(job: _Job) -> Iterator[Compared]:
    by_version: dict[str, list[ProcessLog]] = defaultdict(list)
    for _, one in job.members:
        if one.version:
            by_version[f"{one.library} {one.version}"].append(one)
    ranks = [one.rank for members in by_version.values() for one in members]
    # A rank that is there twice is of another run: then the versions need not have met.
    if len(by_version) < 2 or None in ranks or len(set(ranks)) < len(ranks):
        return
    ordered = sorted(by_version.items(), key=lambda item: -len(item[1]))
    words = ", ".join(f"{name}: {len(members)}" for name, members in ordered[:_MANY_SHOWN])
    others = [one for _, members in ordered[1:] for one in members]
    yield Compared("versions-differ", job.who(others), f"processes by version: {words}")


def _environment(job: _Job) -> Iterator[Compared]:
    told = [one for _, one in job.members if one.environment]
    names = sorted({name for one in told for name in one.environment} - _OF_PROCESS)
    differing, others = [], []
    for name in names:
        values = Counter(one.environment.get(name) for one in told)
        if len(values) < 2:
            continue
        usual = values.most_common(1)[0][0]
        words = (
            f"{'not set' if value is None else value[:40] or 'empty'}: {count}"
            for value, count in values.most_common()
        )
        differing.append(f"{name} ({cut_list(words, _MANY_SHOWN)})")
        others += [one for one in told if one.environment.get(name) != usual]
    if differing:
        yield Compared("environment-differs", job.who(others), cut_list(differing, _MANY_SHOWN))


def _init(job: _Job) -> Iterator[Compared]:
    """Find communicators that some ranks began; they are told apart by their id.

    Ranks whose calls came back with an error did not wait.
    """
    if job.partial:
        return
    traces = job.log.hits.get("return-trace")
    writers = traces.first if traces else ()
    failed = {id(job.log.processes[job.identities.leader(at)]) for at in writers}
    comms: dict[str, list[tuple[Identity, ProcessLog, bool]]] = defaultdict(list)
    sizes: dict[str, int] = {}
    began: dict[str, set[int]] = defaultdict(set)
    for who, process in job.members:
        for comm in process.comms.values():
            if comm.started and comm.id:
                comms[comm.id].append((who, process, comm.completed or comm.ended))
                sizes[comm.id] = comm.nranks
                began[comm.id].add(comm.rank)
    for name, members in comms.items():
        stuck = [process for _, process, done in members if not done and id(process) not in failed]
        if not stuck:
            continue
        nranks = sizes[name]
        missing = [rank for rank in range(min(nranks, 1 << 20)) if rank not in began[name]]
        detail = f"{len(stuck)} of {nranks} ranks of communicator {name}"
        if missing and 2 * len(missing) <= nranks:
            those = cut_list((str(rank) for rank in missing), _MANY_SHOWN)
            detail += f"; no line says that rank {those} began"
        elif not missing:
            detail += "; all ranks began"
        yield Compared("init-incomplete", job.who(stuck), detail)
        return  # the first one; those after it need not mean more


def _init_time(job: _Job) -> Iterator[Compared]:
    timed = [(who, one) for who, one in job.members if one.init is not None]
    slow = [(who, one) for who, one in timed if one.init and one.init.total_s > _INIT_SLOW_S]
    if not slow:
        return
    longest = max(one.init.total_s for _, one in slow if one.init)
    detail = f"up to {longest:.1f} s"
    waits = [
        (one.init.bootstrap_s, who)
        for who, one in timed
        if one.init and one.init.bootstrap_s is not None
    ]
    if len(waits) > 1:
        least, last = min(waits, key=lambda wait: wait[0])
        most = max(wait for wait, _ in waits)
        if most - least > _INIT_SLOW_S / 2:
            detail += (
                f"; {last.name} met the others last: its bootstrap took {least:.1f} s, others' up "
                f"to {most:.1f} s"
            )
    yield Compared("init-slow", tuple(who for who, _ in slow), detail)


def _nvls(job: _Job) -> Iterator[Compared]:
    known = [one for _, one in job.members if one.nvls is not None]
    without = [one for one in known if not one.nvls]
    if without and len(without) < len(known):
        yield Compared("nvls-differs", job.who(without), f"{len(without)} of {len(known)} cannot")


def _behind(job: _Job) -> Iterator[Compared]:
    """Find who did not call the collective in which others of its group wait.

    Ranks that called more than others are not ahead for that: a host runs ahead of its GPU.
    """
    groups: dict[str, dict[int, tuple[int, TorchGroup, WorkCounts]]] = defaultdict(dict)
    for (at, key), (group, counts) in job.log.work.items():
        leader = job.identities.leader(at)
        before = groups[key].get(leader)
        if before is None or before[2].enqueued < counts.enqueued:
            groups[key][leader] = at, group, counts
    for _, members in sorted(groups.items()):
        rows = list(members.values())
        ranks = [group.rank for _, group, _ in rows if group.rank is not None]
        if len(set(ranks)) < len(ranks):
            continue  # two are the same rank of it: its name is that of several groups
        least = min(counts.enqueued for _, _, counts in rows)
        waits = [c.waits_in for _, _, c in rows if c.waits_in is not None and c.waits_in > least]
        if not waits:
            continue
        behind = [(at, counts) for at, _, counts in rows if counts.enqueued < min(waits)]
        if 2 * len(behind) > len(rows):
            continue  # either they are behind, or the others called one too many
        who = job.identities.distinct(at for at, _ in behind)
        most = max(counts.enqueued for _, counts in behind)
        count = str(max(least, 0)) if least == most else f"{max(least, 0)} to {most}"
        yield Compared(
            "rank-behind",
            tuple(who),
            f"{said_names(who)} enqueued {count} collectives of {rows[0][1].name}; others wait in "
            f"the one with the number {min(waits)}",
        )


def _differing(job: _Job) -> Iterator[Compared]:
    """Find groups whose ranks wait in different collectives of one number.

    All of them are told: which one is right is not known.
    """
    groups: dict[tuple[str, int], dict[int, tuple[TorchGroup, Operation]]] = defaultdict(dict)
    for (at, key), (group, counts) in job.log.work.items():
        if counts.waits_in is None:
            continue
        found = job.log.operations.get((at, counts.waits_in))
        if found is not None:
            groups[key, counts.waits_in][job.identities.leader(at)] = group, found
    for (_, count), members in sorted(groups.items()):
        ranks = [group.rank for group, _ in members.values() if group.rank is not None]
        if len(set(ranks)) < len(ranks):
            continue  # two are the same rank of it: its name is that of several groups
        callers: dict[str, list[Identity]] = defaultdict(list)
        names = {found.name for _, found in members.values()}
        for leader, (_, found) in members.items():
            said = found.name
            if len(names) == 1:
                if said not in _OF_ONE_SIZE:
                    continue
                said += f" of {found.sizes[0]:,} elements"
            callers[said].append(job.identities.of(leader))
        if len(callers) > 1:
            group = next(iter(members.values()))[0]
            words = (f"{said_names(who)}: {said}" for said, who in callers.items())
            yield Compared(
                "collectives-differ",
                tuple(one for who in callers.values() for one in who),
                f"number {count} of {group.name}: {cut_list(words, _MANY_SHOWN)}",
            )


def _desync(job: _Job) -> Iterator[Compared]:
    """Tell what PyTorch's own reports say; without the group of all ranks they are ranks in one."""
    for found, (group, writer) in job.log.desyncs.items():
        is_whole = group is None or group.has_all_ranks
        words = [
            f"{_said_ranks(ranks)} {what}"
            for ranks, what in (
                (found.never, "joined no collective"),
                (found.not_finished, f"did not finish collective {found.not_finished_in}"),
                (found.not_joined, f"did not join collective {found.not_joined_in}"),
            )
            if ranks
        ]
        if is_whole:
            ranks = (*found.never, *found.not_finished, *found.not_joined)
            who = tuple(job.identities.of_rank(one) for one in dict.fromkeys(ranks))
            yield Compared("desync-report", who, "; ".join(words))
        else:
            yield Compared(
                "desync-report", (), f"ranks in {group.name if group else ''}: {'; '.join(words)}"
                f"; written by {job.identities.of(writer).name}",
            )  # fmt: skip


def _said_ranks(ranks: Sequence[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {cut_list(map(str, ranks), 2 * _MANY_SHOWN)}"


def _communicators(job: _Job) -> Iterator[Compared]:
    many = [one for _, one in job.members if one.comms_made > COMMUNICATORS_MANY]
    if many:
        most = max(one.comms_made for one in many)
        yield Compared("many-communicators", job.who(many), f"up to {most} in one process")
