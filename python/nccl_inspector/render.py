# SPDX-License-Identifier: Apache-2.0
"""A report as text for a terminal: verdict first, 100 columns, no colour."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from nccl_inspector.analysis.bandwidth import size_label
from nccl_inspector.analysis.coverage import Coverage
from nccl_inspector.analysis.join import Communicator, Figures
from nccl_inspector.analysis.straggler import Named, total_waiting
from nccl_inspector.hostlist import compress_within
from nccl_inspector.model import P2P
from nccl_inspector.report import Report

COLUMNS = 100
COMMUNICATORS_SHOWN = 16
KINDS_SHOWN = 12
LINES_SHOWN = 12
ALSO_SHOWN = 3
COMPONENTS_SHOWN = 8
NODELIST_CHARS_SHOWN = 300
ALSO_SHARE = 0.1  # of the first one's waiting: less is the noise of the machine

# Of DROPS_IN_PART.
_IN_PART = {
    "no_peer": "Sends and Recvs that are not in the figures by peer",
    "no_group": "Sends and Recvs that could not be seen as part of their group",
    "json": "lines that the JSON files have not got",
}
_WHO_COLUMNS = 17
_ROW = "  {:<13} {:<11} {:<16} {:>9} {:>9} {:>8} {:>7}  {}"


def _digits(value: float, count: int) -> str:
    """Return a positive number with so many digits that mean something, trailing zeros kept."""
    if value < 1:
        return f"{value:#.{count}g}"
    return f"{value:.{max(0, count - len(str(int(value))))}f}"


def _duration(ns: float) -> str:
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size_ns:
            return f"{_digits(ns / size_ns, 4)} {unit}"
    return f"{ns:.0f} ns"


def _spell(ns: int) -> str:
    """Return a time of silence: whole minutes of a longer one."""
    return _duration(ns) if ns < 120e9 else f"{ns / 60e9:.0f} min"


def _number(count: int, word: str) -> str:
    return (
        f"{count} {word}" if count == 1 else f"{count} {word}{'es' if word.endswith('s') else 's'}"
    )


def _wrap(first: str, text: str) -> str:
    return textwrap.fill(text, COLUMNS, initial_indent=first, subsequent_indent=" " * len(first))


def _job(report: Report) -> str:
    head = report.head
    if not head.het_job_id:
        task = f" (array task {report.array_task})" if report.array_task else ""
        return f"job {head.job_id}{task}"
    ids = [str(job) for job in report.nodelists]
    word = "component" if len(ids) == 1 else "components"
    return f"job {head.het_job_id} (het: {word} {_cut(ids, COMPONENTS_SHOWN)})"


def _head(report: Report) -> Iterator[str]:
    head = report.head
    words = [_job(report), f"user {head.user or head.uid}"]
    words += [
        f"{name} {value}" for name in ("account", "partition") if (value := getattr(head, name))
    ]
    missing = {node for nodes in report.nodes_missing.values() for node in nodes}
    total = len(missing | set(report.nodes))
    some = f"{len(report.nodes)} of " if len(report.nodes) < total else ""
    words.append(some + _number(total, "node"))
    if report.steps > 1:
        words.append(f"{_number(report.processes, 'process')} in {report.steps} steps")
    else:
        words.append(_number(report.processes, "rank"))
    if len(report.attempts) > 1 or head.restart:
        others = ", ".join(str(attempt) for attempt in report.attempts if attempt != head.restart)
        words.append(f"attempt {head.restart}" + (f" (--attempt shows {others})" if others else ""))
    yield _wrap("NCCL JOB REPORT  ", ", ".join(words))
    lists = {job: nodes.replace(",", ", ") for job, nodes in report.nodelists.items() if nodes}
    said = [f"{job}: {nodes}" if head.het_job_id else nodes for job, nodes in lists.items()]
    if said:
        text = textwrap.shorten("; ".join(said), NODELIST_CHARS_SHOWN, placeholder=" ...")
        yield _wrap("nodes  ", text)


def _named(named: Named) -> str:
    place = named.place
    groups = f"{len(named.communicators)} of its {_number(named.member_of, 'communicator')}"
    return (
        f"{place.name} ({place.node}, {place.gpu}) came late by {_duration(named.late_ns)} "
        f"at the median, in {groups}; its peers waited {_duration(named.waited_ns)} for it in all"
    )


def _nobody(report: Report) -> str:
    """Return what it means that nobody is named."""
    figures = [one for comm in report.communicators for one in comm.figures]
    if not any(one.judged for one in figures):
        return (
            "CANNOT TELL who was waited for: no AllReduce, AllGather or ReduceScatter with enough "
            "operations of enough ranks."
        )
    if report.nodes_missing or any(len(c.members) < c.nranks for c in report.communicators):
        return "no rank stands out among those that were measured; some are missing."
    return "no rank stands out at the median."


def _no_figures(coverage: Coverage) -> str:
    """Return why there are none, as far as it is known."""
    if coverage.untimed:
        return "NO TIMES: operations were counted, but none has a time"
    why = ""
    if coverage.denied:
        why = f": {', '.join(coverage.denied)} is on the site's list deny_nccl"
    elif coverage.disabled.names:
        why = ": the site's kill switch was on"
    return f"NO DATA: no operation was measured{why}"


def _verdict(report: Report) -> Iterator[str]:
    if not any(comm.figures for comm in report.communicators):
        yield _wrap("VERDICT  ", _no_figures(report.coverage))
        return
    waiting_ns, all_ns = total_waiting(report.communicators)
    share = (
        f"{waiting_ns / all_ns:.0%} of the ranks' time in collectives was waiting."
        if all_ns
        else ""
    )
    if not report.named:
        yield _wrap("VERDICT  ", f"{_nobody(report)} {share}")
        return
    yield _wrap("VERDICT  ", f"STRAGGLER: {_named(report.named[0])}. {share}")
    floor_ns = report.named[0].waited_ns * ALSO_SHARE
    others = [named for named in report.named[1:] if named.waited_ns >= floor_ns]
    for named in others[:ALSO_SHOWN]:
        yield _wrap("  also   ", _named(named))
    if len(others) > ALSO_SHOWN:
        yield f"         and {len(others) - ALSO_SHOWN} more"
    if others:
        rule = "Ranks that were only late because they waited for these are not named."
        yield _wrap("         ", rule)


def _row(one: Figures) -> str:
    waits = one.func not in P2P
    who = one.late.place.name if one.late else "-"
    if one.late and len(longer := f"{who} {one.late.place.node}") <= _WHO_COLUMNS:
        who = longer
    return _ROW.format(
        one.func,
        size_label(one.size_class),
        one.algo_proto.replace("COLLNET_", "CN_") or "-",
        one.operations,
        _duration(one.time_ns),
        _digits(one.bus_gbs, 3) if one.bus_gbs else "-",
        f"{one.waiting:.0%}" if waits else "-",
        who,
    ).rstrip()


def _communicator(comm: Communicator, kinds: int) -> Iterator[str]:
    name = textwrap.shorten(comm.name, 40, placeholder="...") or "(no name)"
    nodes = f" on {_number(comm.nnodes, 'node')}" if comm.nnodes else ""
    number = f"0x{comm.id:x}  " if comm.id else ""  # none for several taken together
    ranks = _number(comm.nranks or len(comm.members), "rank")
    yield f" {name}  {number}{ranks}{nodes}"
    for one in comm.figures[:kinds]:
        yield _row(one)
        for note in one.notes:
            if note not in comm.notes:
                yield f"     ({note})"
    if len(comm.figures) > kinds:
        yield f"     and {len(comm.figures) - kinds} kinds of operation that took less time"
    if not comm.figures:
        counted = any(key.untimed_ops for one in comm.members.values() for key in one.keys)
        yield "   no operation has a time" if counted else "   no operation was measured"
    for note in comm.notes:
        yield f"     ({note})"


def _communicators(report: Report, shown: int, kinds: int) -> Iterator[str]:
    if not report.communicators:
        return
    yield "COMMUNICATORS  (time T: least of the ranks' medians, so without waiting for a late rank)"
    yield _ROW.format(
        "operation",
        "size",
        "algorithm",
        "count",
        "time T",
        "bus GB/s",
        "waiting",
        "waited for",
    )
    for comm in report.communicators[:shown]:
        yield ""
        yield from _communicator(comm, kinds)
    if len(report.communicators) > shown:
        yield f" and {len(report.communicators) - shown} smaller communicators (--all shows them)"


def _cut(words: Iterable[str], shown: int) -> str:
    whole = list(words)
    more = f" and {len(whole) - shown} more" if len(whole) > shown else ""
    return ", ".join(whole[:shown]) + more


def _who(names: Sequence[str], processes: int, shown: int) -> str:
    if len(names) == processes > 1:
        return f"all {processes} processes"
    return _cut(names, shown)


def _size(size_bytes: int) -> str:
    for unit, each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= each:
            return f"{_digits(size_bytes / each, 3)} {unit}"
    return f"{size_bytes} B"


def _silence(coverage: Coverage, processes: int, shown: int) -> Iterator[str]:
    for nccl, names in coverage.denied.items():
        who = _who(names, processes, shown)
        yield f"not measured, {nccl} is on the site's list deny_nccl: {who}"
    spell = coverage.disabled
    if spell.names:
        yield (
            f"not measured while the site's kill switch was on, up to "
            f"{_spell(spell.longest_ns)}: {_who(spell.names, processes, shown)}"
        )
    spell = coverage.sampled
    if spell.names:
        last = f", one in {coverage.sampling} at the end" if coverage.sampling > 1 else ""
        yield (
            f"only some operations timed, to spare the application, for up to "
            f"{_spell(spell.longest_ns)}{last}: {_who(spell.names, processes, shown)}"
        )


def _coverage(coverage: Coverage, processes: int, shown: int) -> Iterator[str]:
    """Return lines about what was measured otherwise, or not, though the processes were there."""
    if coverage.dropped:
        reasons = ", ".join(f"{reason} {number}" for reason, number in coverage.dropped.items())
        yield f"events that were not measured: {reasons}"
    yield from _silence(coverage, processes, shown)
    for nccl, names in coverage.counted_only.items():
        yield f"counted only, {nccl} tells no times: {_who(names, processes, shown)}"
    for nccl, names in coverage.cpu_timed.items():
        yield (
            f"measured by the CPU's clock, {nccl} does not tell the GPU's: "
            f"{_who(names, processes, shown)}"
        )
    if coverage.untimed:
        funcs = ", ".join(
            f"{func} {count} ({_size(size)})" for func, (count, size) in coverage.untimed.items()
        )
        yield f"operations without a time, counted over all ranks: {funcs}"
    for reason, count in coverage.in_part.items():
        have = f" (they have {coverage.json_lines})" if reason == "json" else ""
        yield f"{_IN_PART[reason]}: {count}{have}"


def _links(report: Report, shown: int) -> Iterator[str]:
    links = report.links
    if links is None:
        return
    yield "LINKS AND GPUS  (the hardware's counters while the job ran; other jobs are in them too)"
    lines = [f"{row.node} {row.device}: {'; '.join(row.words)}" for row in links.rows[:shown]]
    if len(links.rows) > shown:
        lines.append(f"and {len(links.rows) - shown} more lines (--all shows them)")
    if links.sampled and not links.rows:
        lines.append(f"no error on {_number(links.sampled, 'node')}")
    for why, nodes in links.absent.items():
        text, rest = compress_within(nodes, max(shown, NODELIST_CHARS_SHOWN))
        lines.append(f"{why}: {text.replace(',', ', ')}{f' and {rest} more' if rest else ''}")
    lines += links.problems[:shown]
    if len(links.problems) > shown:
        lines.append(f"and {len(links.problems) - shown} more lines (--all shows them)")
    for line in lines:
        yield textwrap.fill(line, COLUMNS, initial_indent=" ", subsequent_indent="   ")


def _missing(report: Report, shown: int) -> Iterator[str]:
    lines = []
    for job, nodes in report.nodes_missing.items():
        count = _number(len(nodes), "node") + (f" of job {job}" if report.head.het_job_id else "")
        # `shown` is without bound when no table is to be cut short.
        text, rest = compress_within(nodes, max(shown, NODELIST_CHARS_SHOWN))
        more = f" and {rest} more" if rest else ""
        lines.append(f"no summary of {count}: {text.replace(',', ', ')}{more}")
    if report.killed:
        lines.append(
            f"died without finalizing, data up to the last event: {_cut(report.killed, shown)}"
        )
    lines += _coverage(report.coverage, report.processes, shown)
    lines += report.problems[:shown]
    if len(report.problems) > shown:
        lines.append(f"and {len(report.problems) - shown} more lines (--all shows them)")
    if report.head.het_job_id:
        # Slurm tells a node the leader's id, not how many components there are.
        lines.append(
            "other components of the het job, if there were any: only "
            f"{_cut(map(str, report.nodelists), shown)} "
            f"{'has' if len(report.nodelists) == 1 else 'have'} measurements in this report"
        )
    yield "MISSING  nothing" if not lines else "MISSING"
    for line in lines:
        yield textwrap.fill(line, COLUMNS, initial_indent=" ", subsequent_indent="   ")


def render_text(report: Report, everything: bool = False) -> str:
    """Return the report; `everything`: no table is cut short."""
    big = 1 << 30
    comms, kinds, rest = (
        (big,) * 3 if everything else (COMMUNICATORS_SHOWN, KINDS_SHOWN, LINES_SHOWN)
    )
    parts = (
        _head(report),
        _verdict(report),
        _communicators(report, comms, kinds),
        _links(report, rest),
        _missing(report, rest),
    )
    texts = ["\n".join(part) for part in parts]
    return "\n\n".join(text for text in texts if text) + "\n"
