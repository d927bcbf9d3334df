# SPDX-License-Identifier: Apache-2.0
"""What a log says in the end: the first error, all findings, and the facts."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from nccl_inspector.model.card import CRITICAL, SEVERITIES, WARNING, Severity
from nccl_inspector.model.wording import cut_list, elapsed, number
from nccl_inspector.nccl_log.catalogue import LogRule, Role, Scope, load_catalogue, shape_of
from nccl_inspector.nccl_log.compare import compare
from nccl_inspector.nccl_log.identities import Identities, Identity, said_hosts, said_names
from nccl_inspector.nccl_log.kept import Hits, Log, Quote
from nccl_inspector.nccl_log.process_log import LAUNCHER, Comm, ProcessLog
from nccl_inspector.nccl_log.results import said_result

NAMES_MAX = 64  # of processes in one finding
FACT_VALUES_MAX = 6
_TIES_SHOWN = 4
# Ends of processes from which what peers write of each other follows.
_DEATHS = frozenset(
    {
        "oom-killed", "slurm-node-failed", "task-killed", "python-exception", "cpp-exception",
        "ray-worker-died", "ray-memory", "data-worker-killed",
    }
)  # fmt: skip
# Such ends that are written when they happen.
_DEATHS_AT_ONCE = frozenset(
    {
        "process-crashed", "process-bus-error", "amd-gpu-fault", "amd-gpu-hung", "ray-node-lost",
        "job-preempted", "job-requeued",
    }
)  # fmt: skip
# What somebody notices of an error before it: an exception that comes later is not the first.
_NOTICED = frozenset(
    {
        "nccl-exception", "watchdog-timeout", "watchdog-stuck", "watchdog-failed",
        "watchdog-terminated", "store-timeout", "barrier-missed", "gloo-timeout",
        "collective-raised",
    }
)  # fmt: skip
_CRASHES = frozenset({"process-crashed", "process-bus-error"})
_KILLED: Final = "task-killed"
_OUT_OF_MEMORY: Final = "oom-killed"
# The signals of a crash, as launchers tell them.
_CRASHED = re.compile(
    rb"signal (?:4|7|8|11)\b|code = -(?:4|7|8|11)\b| fault|Bus error|Illegal|Floating"
    rb"|SIG(?:SEGV|BUS|ILL|FPE)\b|exitcode=(?:-(?:4|7|8|11)|13[256]|139)\b"
)
# What may have come because something had hung before, and is told when it happens.
_ENDS_AT_ONCE = frozenset(
    {"time-limit", "job-preempted", "job-requeued", "ray-worker-died", "ray-memory"}
)
_WAITED: Final = "watchdog-timeout"
_UNKNOWN = frozenset({"warning", "torch-error"})
# NCCL's results that are not of another process: CUDA, system, argument, usage.
_OWN_FAILURES = frozenset({1, 2, 4, 5})
# Errors of a transfer that a link which is down brings about.
_OF_LINKS = frozenset({"ib-retry-exceeded", "ib-flushed", "ib-completion-error"})
_EXCEPTIONS = frozenset({"python-exception", "cpp-exception", "heap-damaged"})
_OF_PROGRAMS = _EXCEPTIONS | {"program-gpu-memory", "program-cuda-error"}
# What may have come from an error before it.
_MAY_FOLLOW = _OF_PROGRAMS | _ENDS_AT_ONCE | {_KILLED}
_PORT_ERROR = b"port error"
# Where an error reaches the program, or ends the setting up.
_OF_CALLS = re.compile(rb"(?:src/)?(?:group|init|enqueue|bootstrap)\.c[cu]:")
_ADDRESSES_CHANGED: Final = "ib-addresses-changed"
_PORT_BEFORE_S = 300.0
_PORT_BEFORE_BYTES = 16 << 10
_ONLY_FOLLOWED: Final = (
    "not known: something failed, and what is recognized here only followed from it; look at the "
    "lines before, and at the logs of other ranks"
)
_ROLES = (Role.ERROR, Role.SYMPTOM, Role.SETTING, Role.CONSEQUENCE)


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A rule that fits lines of the log, or the facts of its processes."""

    rule: LogRule
    severity: Severity
    who: str  # as text
    names: tuple[str, ...]  # the first NAMES_MAX of the processes
    processes: int
    lines: int  # 0: no single line says it
    detail: str
    quote: Quote | None
    action: str
    key: str = ""  # of several findings of one rule


@dataclass(frozen=True, slots=True)
class FirstError:
    """The first error of all, and what came after it.

    `certain` is False if not all errors have a time, so that another one may have been earlier.
    """

    rule: LogRule
    who: str
    time_s: float | None
    quote: Quote
    followers: int
    within_s: float | None  # how long after it the last of them came; None: not known
    certain: bool
    key: str = ""  # of its finding
    waited: str = ""  # who had given up waiting before it
    unknown: str = ""  # file:line of a warning before it that no rule knows
    as_early: tuple[str, ...] = ()  # other rules of errors that may have been before it


def said_followers(count: int, within_s: float | None) -> str:
    """Return `; 63 other processes followed within 2 s`; empty if nobody did."""
    if not count:
        return ""
    words = f"; {number(count, 'other process')} followed"
    if within_s is None:
        return words
    return f"{words} within {elapsed(within_s) if within_s > 60 else f'{ceil(within_s) or 1} s'}"


def said_as_early(rules: Sequence[str]) -> str:
    """Return `; as early: gpu-memory, shm-full`; empty if there is none."""
    return f"; as early: {cut_list(rules, _TIES_SHOWN)}" if rules else ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A property of processes: each value with how many have it, the most frequent first."""

    name: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LogReport:
    """Everything that can be said of a log."""

    files: int
    bytes: int
    lines: int
    processes: int
    hosts: tuple[str, ...]
    first: FirstError | None
    findings: tuple[LogFinding, ...]
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding, or None without findings."""
        return max((one.severity for one in self.findings), key=SEVERITIES.index, default=None)

    @property
    def only_consequences(self) -> bool:
        """Whether something follows from an error of which the log has nothing."""
        roles = {one.rule.role for one in self.findings}
        return Role.CONSEQUENCE in roles and not roles & {Role.ERROR, Role.SYMPTOM}

    @property
    def no_first(self) -> str:
        """Why there is no first error, although something failed; empty: there is, or nothing did.

        An exception that came after somebody had noticed an error is not counted.
        """
        if self.only_consequences:
            return _ONLY_FOLLOWED
        critical = [one.rule for one in self.findings if one.severity is CRITICAL]
        failed = {one.role for one in critical} & {Role.ERROR, Role.SYMPTOM}
        if self.first is not None or not failed:
            return ""
        if any(one.role is Role.ERROR and one.id not in _MAY_FOLLOW for one in critical):
            return "not known: no times tell which of the errors was before the others"
        return "not known: what is recognized here waited for something, or followed from it"


def judge_log(log: Log, *, own_files: bool = False, partial: bool = False) -> LogReport:
    """Return the report; `own_files` and `partial` say how it was read (reader.py, compare.py)."""
    identities = Identities(log.processes, own_files=own_files)
    raised = log.hits.get("python-exception")
    if raised is not None and any(
        one is not raised and one.grave is CRITICAL for one in log.hits.values()
    ):
        raised.severity = None  # the program went on for a while, and failed all the same
    _silent(log)
    _unmade(log)
    for hits in log.hits.values():
        if hits.rule.id in _OF_PROGRAMS and all(
            _is_after_notice(log, _Event(time_s, order, writer, hits, ""))
            for writer, (time_s, order) in hits.first.items()
        ):
            hits.severity = WARNING
    first = _first_error(log, identities)
    found = [*_matched(log, identities), *_compared(log, identities, partial)]
    order = sorted(found, key=lambda one: _place(one, first))
    real = {identities.leader(at) for at in range(len(log.processes)) if identities.is_known(at)}
    everybody = identities.leaders()
    return LogReport(
        log.files,
        log.bytes,
        log.lines,
        len(real) or len(everybody),
        identities.hosts,
        first,
        tuple(order),
        tuple(_facts(log, real)),
        tuple(_notes(log, has_first=first is not None)),
    )


def _place(one: LogFinding, first: FirstError | None) -> tuple[int, int, int]:
    """Return the place of a finding: the first error, then the worst, causes before settings."""
    is_first = first is not None and one.key == first.key
    return (0 if is_first else 1, -SEVERITIES.index(one.severity), _ROLES.index(one.rule.role))


def _silent(log: Log) -> None:
    """Make calls that came back with an error a finding, if nothing else says why.

    Of a process whose communicator came about they may have been of something it can do without.
    """
    traces = log.hits.get("return-trace")
    if traces is None or len(log.hits) > sum(
        one.rule.role is Role.SETTING or one is traces for one in log.hits.values()
    ):
        return
    codes = [
        one.record.code for one in traces.quotes
        if one.record.code in _OWN_FAILURES
        and not any(comm.completed for comm in log.processes[one.process].comms.values())
    ]  # fmt: skip
    if codes:
        traces.rule = load_catalogue().rules["nccl-silent"]
        traces.code = codes[0] or 0
    elif traces.count == len(traces.quotes) and all(
        any(comm.completed for comm in log.processes[one.process].comms.values())
        and not _OF_CALLS.match(one.record.message)
        for one in traces.quotes
    ):
        del log.hits["return-trace"]  # no call of the program's came back with them


def _unmade(log: Log) -> None:
    """Make a buffer in shared memory that could not be made an error, if nothing says why."""
    failed = log.hits.get("shm-failed")
    if failed is None or any(
        one.rule.role is Role.ERROR and one.grave is CRITICAL
        and one.rule.id not in _MAY_FOLLOW
        for one in log.hits.values()
    ):  # fmt: skip
        return
    failed.rule = load_catalogue().rules["shm-unmade"]


# The first error.


@dataclass(frozen=True, slots=True)
class _Event:
    time_s: float | None
    order: int
    writer: int
    hits: Hits
    key: str


def _events(log: Log, roles: Iterable[Role]) -> list[_Event]:
    wanted = set(roles)
    return [
        _Event(time_s, order, writer, hits, key)
        for key, hits in log.hits.items()
        if hits.rule.role in wanted
        and (hits.grave is CRITICAL or hits.rule.role is Role.CONSEQUENCE)
        for writer, (time_s, order) in hits.first.items()
    ]


def _candidates(log: Log) -> list[_Event]:
    """Return the critical errors of which one may be the first."""
    errors = _without_twice(log, _events(log, [Role.ERROR]))
    if any(one.hits.rule.id in _DEATHS for one in errors):
        # What peers write of each other may follow from a death, which Slurm tells at the end.
        errors = [one for one in errors if one.hits.rule.scope is not Scope.PAIR]
    if deaths := [one for one in errors if one.hits.rule.id in _DEATHS_AT_ONCE]:
        errors = [
            one for one in errors
            if one.hits.rule.scope is not Scope.PAIR
            or all(_is_before(log, (one.time_s, one.order), death) for death in deaths)
        ]  # fmt: skip
    return [one for one in errors if not _is_after_notice(log, one)]


def _without_twice(log: Log, errors: list[_Event]) -> list[_Event]:
    """Return the errors with each death once.

    A crash by its own line, or by that of its launcher at the end: the launcher tells of whom it
    is; its own line tells what was before it. A kill for lack of memory by the line that says so.
    """
    if _OUT_OF_MEMORY in log.hits:
        errors = [one for one in errors if not _is_told_by_a_shell(log, one)]
    crashes = [one for one in errors if one.hits.rule.id in _CRASHES]
    killed = log.hits.get(_KILLED)
    if not crashes or killed is None:
        return errors
    if not all(_CRASHED.search(quote.record.message) for quote in killed.quotes):
        return errors
    is_told = any(one.hits.whom or _is_named(log.processes[one.writer]) for one in crashes)
    is_later = any(
        _is_before(log, (one.time_s, one.order), crash)
        for one in errors if one.hits.rule.id not in _CRASHES
        for crash in crashes
    )  # fmt: skip
    twice = {_KILLED} if is_told or is_later else _CRASHES
    return [one for one in errors if one.hits.rule.id not in twice]


def _first_error(log: Log, identities: Identities) -> FirstError | None:
    """Return the first critical error, or None if nothing tells which one came first."""
    errors = _candidates(log)
    timed = [one for one in errors if one.time_s is not None]
    if log.files == 1 and len(timed) < len(errors):
        # The lines of one file are in the order in which they were written.
        first = min(errors, key=lambda one: one.order)
    elif timed:
        first = min(timed, key=lambda one: (one.time_s, one.order))
    elif not errors:
        return None
    else:
        whose = {identities.leader(one.writer) for one in errors}
        if len(whose) != 1:
            return None
        first = errors[0]
    ties = _as_early(errors, first, identities)
    # Lines of one moment come in any order, so none of them is before the others.
    first = max(
        ties, key=lambda one: (_writers(ties, one.key), one.key, -(one.time_s or 0), -one.order)
    )
    if (port := next(filter(None, (_port_before(log, one) for one in ties)), None)) is not None:
        first, ties = port, _as_early([port, *errors], port, identities)
    same = identities.distinct(one.writer for one in ties)
    who = " or ".join(one.name for one in same[:_TIES_SHOWN])
    if first.hits.whom:
        who = cut_list(sorted(first.hits.whom), _TIES_SHOWN)
    elif len(same) > _TIES_SHOWN:
        who = f"one of {number(len(same), 'process')}"
    quote = _quote_of(first)
    if quote is None:
        return None
    followers, within_s = _followers(log, identities, first, {one.name for one in same})
    return FirstError(
        first.hits.rule, who, first.time_s, quote, followers, within_s,
        len(timed) == len(errors) or log.files == 1, first.key,
        _waited_before(log, identities, first), _unknown_before(log, first),
        tuple(sorted({one.hits.rule.id for one in ties} - {first.hits.rule.id})),
    )  # fmt: skip


def _is_before(log: Log, one: tuple[float | None, int], other: _Event) -> bool:
    """Tell whether a line (its time and order) is known to be before an event."""
    time_s, order = one
    if log.files == 1:
        return order < other.order
    return time_s is not None and other.time_s is not None and time_s < other.time_s


def _is_after_notice(log: Log, error: _Event) -> bool:
    """Tell whether a program failed after it had waited in vain, or had noticed an error.

    So does the exception of a writer without a name, after anybody did: it may be the program that
    started the others. So does a shell that tells of a kill: somebody may have ended what hung, or
    had failed. Slurm's end of a job that had waited is no first error, either, and neither is a
    worker that Ray lost then: its own watchdog may have ended it. A rank that fails while others
    wait for it may well be why.
    """
    rule = error.hits.rule.id
    is_of_shell = _is_told_by_a_shell(log, error)
    if rule not in _OF_PROGRAMS | _ENDS_AT_ONCE and not is_of_shell:
        return False
    is_nameless = rule in _EXCEPTIONS and not _is_named(log.processes[error.writer])
    of_anybody = is_nameless or is_of_shell or rule in _ENDS_AT_ONCE
    noticed = _NOTICED if rule in _EXCEPTIONS or is_of_shell else {_WAITED}
    return any(
        _is_before(log, first, error)
        for hits in log.hits.values()
        if hits.rule.id in noticed
        for writer, first in hits.first.items()
        if of_anybody or writer == error.writer
    )


def _is_told_by_a_shell(log: Log, error: _Event) -> bool:
    return error.hits.rule.id == _KILLED and not _is_named(log.processes[error.writer])


def _is_named(one: ProcessLog) -> bool:
    return one.pid is not None or one.label is not None or bool(one.alias)


def _waited_before(log: Log, identities: Identities, first: _Event) -> str:
    """Return who had given up waiting before the first error; empty: nobody is known to have."""
    hits = log.hits.get(_WAITED)
    if hits is None or first.hits.rule.known == "launcher":
        return ""
    found = [
        (told, writer) for writer, told in hits.first.items()
        if writer != first.writer and _is_before(log, told, first)
    ]  # fmt: skip
    if not found:
        return ""
    return identities.of(min(found, key=lambda one: one[0][1])[1]).name


def _unknown_before(log: Log, first: _Event) -> str:
    """Return where a warning is that no rule knows, before the first error; empty: nowhere."""
    for hits in log.hits.values():
        if hits.rule.id in _UNKNOWN:
            for quote in hits.quotes:
                if _is_before(log, (quote.record.time_s, quote.order), first):
                    return quote.place
    return ""


def _port_before(log: Log, first: _Event) -> _Event | None:
    """Return what happened to a port from which an adapter's error of a transfer followed, or None.

    Adapters repeat a transfer for half a minute, so it is not long before.
    """
    if first.hits.rule.id not in _OF_LINKS:
        return None
    downs = [
        (one, hits)
        for hits in map(log.hits.get, ("ib-port-event", _ADDRESSES_CHANGED))
        if hits is not None
        for one in [*hits.quotes, *([hits.earliest] if hits.earliest else [])]
        if hits.rule.id == _ADDRESSES_CHANGED or _PORT_ERROR in one.record.message
    ]
    for one, hits in sorted(downs, key=lambda down: down[0].order):
        time_s = one.record.time_s
        if time_s is not None and first.time_s is not None:
            is_before = 0 < first.time_s - time_s <= _PORT_BEFORE_S
        else:
            is_before = log.files == 1 and 0 < first.order - one.order <= _PORT_BEFORE_BYTES
        if is_before:
            return _Event(time_s, one.order, one.process, hits, hits.rule.id)
    return None


def _as_early(errors: Iterable[_Event], first: _Event, identities: Identities) -> list[_Event]:
    """Return what cannot be put in order with the first, and itself; of each process the first."""
    found: dict[int, _Event] = {}
    for one in errors:
        if one is not first and not _same_moment(one, first):
            continue
        process = identities.leader(one.writer)
        if process not in found or one.order < found[process].order:
            found[process] = one
    return list(found.values())


def _writers(events: Iterable[_Event], key: str) -> int:
    return sum(one.key == key for one in events)


def _same_moment(one: _Event, first: _Event) -> bool:
    """Tell whether two times cannot be put in order: they are whole seconds, and equal."""
    if one.time_s is None or first.time_s is None:
        return False
    time_s, first_s = one.time_s, first.time_s
    if time_s == first_s:
        return True
    return floor(time_s) == floor(first_s) and (time_s.is_integer() or first_s.is_integer())


def _quote_of(event: _Event) -> Quote | None:
    hits = event.hits
    kept = [*hits.quotes, *([hits.earliest] if hits.earliest else [])]
    own = [one for one in kept if one.process == event.writer]
    return next(iter(own or kept), None)


def _followers(
    log: Log, identities: Identities, first: _Event, known: set[str]
) -> tuple[int, float | None]:
    """Return how many other processes wrote of trouble after it, and within how many seconds."""
    times: dict[str, float | None] = {}
    for event in _events(log, [Role.ERROR, Role.SYMPTOM, Role.CONSEQUENCE]):
        name = identities.of(event.writer).name
        if name in known or log.processes[event.writer].alias == LAUNCHER:
            continue
        last = times.setdefault(name, event.time_s)
        if event.time_s is not None and (last is None or event.time_s < last):
            times[name] = event.time_s
    late = [time_s for time_s in times.values() if time_s is not None]
    if first.time_s is None or len(late) < len(times) or not late:
        return len(times), None
    return len(times), max(late) - first.time_s


# Findings.


def _said_who(rule: LogRule, found: Sequence[Identity]) -> str:
    return said_hosts(found) if rule.scope is Scope.NODE else said_names(found)


def _matched(log: Log, identities: Identities) -> Iterator[LogFinding]:
    for key, hits in log.hits.items():
        who = identities.distinct(hits.first)
        names = tuple(sorted(hits.whom)) or tuple(one.name for one in who)
        yield LogFinding(
            hits.rule,
            hits.grave,
            cut_list(names, _TIES_SHOWN) if hits.whom else _said_who(hits.rule, who),
            names[:NAMES_MAX],
            len(names),
            hits.count,
            "; ".join(_details(hits)),
            _shown(hits),
            hits.rule.action,
            key,
        )


def _details(hits: Hits) -> Iterator[str]:
    shown = _shown(hits)
    if hits.code:
        yield f"NCCL's calls came back with {said_result(hits.code)}"
    if shown is not None and hits.rule.id == "python-exception" and shown.record.site:
        yield f"at {shown.record.site}"
    if words := _variety(hits):
        yield words


def _variety(hits: Hits) -> str:
    """Return other texts of a rule: of settings those that differ in more than digits."""
    shown = _shown(hits)
    if shown is None:
        return ""
    if hits.rule.known in ("level", "launcher", "python"):
        texts = list(hits.texts)
        own = shown.record.message
        # The rest of a text that is only the same with other numbers says nothing more.
        others = [one for one in texts if one != own]
    elif hits.rule.role is Role.SETTING:
        by_shape = {shape_of(one.record.message): one.record.message for one in hits.quotes}
        by_shape.pop(shape_of(shown.record.message), None)
        others = list(by_shape.values())
    else:
        return ""
    words = (f"`{text[:80].decode('utf-8', 'replace')}`" for text in others)
    return f"also: {cut_list(words, 3)}" if others else ""


def _shown(hits: Hits) -> Quote | None:
    """Return the line that stands for all."""
    return hits.earliest or next(iter(hits.quotes), None)


def _compared(log: Log, identities: Identities, partial: bool) -> Iterator[LogFinding]:
    rules = load_catalogue().rules
    for one in compare(log, identities, partial=partial):
        rule = rules[one.rule]
        yield LogFinding(
            rule,
            one.severity or rule.severity,
            _said_who(rule, one.who),
            tuple(who.name for who in one.who[:NAMES_MAX]),
            len(one.who),
            0,
            one.detail,
            None,
            rule.action,
        )


# Facts.


def _fact(name: str, values: Iterable[str]) -> Iterator[Fact]:
    counts = Counter(value for value in values if value)
    if counts:
        yield Fact(name, tuple(counts.most_common(FACT_VALUES_MAX)))


def _yes(value: bool | None) -> str:
    return "" if value is None else "on" if value else "off"


def _gpu_direct(process: ProcessLog) -> str:
    if process.gdr_adapters:
        return _yes(all(process.gdr_adapters.values()))
    return _yes(process.gdr_rings)


def _facts(log: Log, chosen: Iterable[int]) -> Iterator[Fact]:
    members = [log.processes[at] for at in sorted(chosen)]
    yield from _fact("library", (f"{one.library} {one.version}" for one in members if one.version))
    yield from _fact("CUDA driver", (one.driver for one in members))
    yield from _fact("network", (one.network for one in members))
    yield from _fact(
        "adapters",
        (
            f"{len(one.hcas)} ({'/'.join(sorted(set(one.hcas.values())))})"
            for one in members
            if one.hcas and not one.hcas_cut
        ),
    )
    on_adapters = [one for one in members if one.network != "Socket"]
    yield from _fact("GPUDirect RDMA", (_gpu_direct(one) for one in on_adapters))
    yield from _fact("NVLS", (_yes(one.nvls) for one in members))
    yield from _fact("CollNet (SHARP)", (one.collnet for one in members))
    yield from _fact("interface", (one.interface for one in members))
    channels = Counter(log.ways)
    for one in members:
        channels.update(one.ways)
    channels += Counter()  # without zeros
    if channels:
        yield Fact("channels", tuple(channels.most_common(FACT_VALUES_MAX)))
    yield from _fact("largest communicator", (_shape(one.comms.values()) for one in members))
    timed = [one.init.total_s for one in members if one.init is not None]
    if timed:
        yield from _fact("set-up", [f"{max(timed):.2f} s (longest)"])
    variables = Counter(
        f"{name}={value}" for one in members for name, value in one.environment.items()
    )
    for words, count in variables.most_common(16):
        yield Fact("environment", ((words, count),))


def _shape(comms: Iterable[Comm]) -> str:
    largest = max(comms, key=lambda one: one.nranks, default=None)
    if largest is None:
        return ""
    on = f" on {number(largest.nodes, 'node')}" if largest.nodes else ""
    return f"{number(largest.nranks, 'rank')}{on}"


def _notes(log: Log, *, has_first: bool) -> Iterator[str]:
    yield from log.notes
    if log.unread and not has_first:
        lines = number(log.unread_count, "line")
        yield f"not in the catalogue: {lines} with words of an error near the end"
        yield from log.unread
    if log.cut:
        lines = number(log.cut, "line")
        yield f"{lines} as long as NCCL up to 2.28.9 cuts them: their end is missing"
    for why, count in sorted(log.skipped.items()):
        yield f"not looked at: {count:,} {why}"
