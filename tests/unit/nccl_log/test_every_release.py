# SPDX-License-Identifier: Apache-2.0
"""Whatever release wrote a line, through whatever launcher, among 64 processes that write at once:
it is its own process's, and the order of equal times changes no finding."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest

from nccl_inspector.nccl_log.identities import Identities
from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.kept import Log
from nccl_inspector.nccl_log.reader import LogReader
from tests.unit.nccl_log.line_forms import (
    HOSTS,
    INITS,
    NCCL_FORMS,
    PREFIXES,
    TIMED,
    TORCH_FORMS,
    Writer,
    writers,
)

RANKS = 64
_TABLE = Path(__file__).with_name("lines.tsv").read_text("ascii").splitlines()
_ROWS = [line.split("\t") for line in _TABLE if not line.startswith("#")]
LOUD = [row for row in _ROWS if " NCCL WARN " in row[2] and "\\n" not in row[2]]
SEEDS = range(3)  # of the long test
Prefix = Callable[[int, str, str], str]
Stream = list[list[str]]  # what a process writes, each at once


def _word(number: int) -> str:
    """Return a number in letters: texts that differ in digits alone are one."""
    return "".join(chr(97 + number // 26**place % 26) for place in range(3))


def _mixed(chance: Random, streams: Sequence[tuple[Writer, Stream]], prefix: Prefix) -> list[str]:
    """Return the lines of all, each process's in its own order."""
    turns = [at for at, (_, stream) in enumerate(streams) for _ in stream]
    chance.shuffle(turns)
    rest = [iter(stream) for _, stream in streams]
    return [
        prefix(streams[at][0].rank, streams[at][0].host, line)
        for at in turns
        for line in next(rest[at])
    ]


def _read(lines: Sequence[str], chance: Random) -> Log:
    reader = LogReader()
    data = "\n".join([*lines, ""]).encode()
    size = chance.choice((1 << 12, 1 << 16, 5000))
    reader.read("job.out", [data[at : at + size] for at in range(0, len(data), size)], 2026)
    return reader.log


def _writers_of(log: Log) -> Iterator[tuple[str, str, str, int | None]]:
    """Yield rule, text, name and pid of each line that is kept."""
    identities = Identities(log.processes)
    for hits in log.hits.values():
        for quote in hits.quotes:
            pid = log.processes[identities.leader(quote.process)].pid
            text = quote.record.message.decode()
            yield hits.rule.id, text, identities.of(quote.process).name, pid


def _site(row: list[str]) -> tuple[str, str]:
    """Return the place in the source and the message of a line of the table."""
    head, _, message = row[2].partition(" NCCL WARN ")
    place = head.partition("] ")[2]
    return (place if " " not in place else "transport/net.cc:7"), message.rstrip()


def _check_warnings(form: str, prefix: str, seed: int) -> None:
    """Each process writes a warning of its own and some of the catalogue's, all at once."""
    chance = Random(f"{form} {prefix} {seed}")  # noqa: S311 - no secret
    job = writers(RANKS, HOSTS[chance.choice(sorted(HOSTS))])
    init = INITS[chance.choice(sorted(INITS))]
    write = NCCL_FORMS[form]
    streams: list[tuple[Writer, Stream]] = []
    said: dict[str, set[tuple[str, int]]] = {}
    rows = chance.sample(LOUD, 32)
    for one in job:
        who = f"rank {one.rank} ({one.host})", one.pid
        texts = [("a.cc:1", f"{_word(one.rank)} is what only this one says")]
        said[texts[0][1]] = {who}
        for row in chance.sample(rows, 2):
            texts.append(_site(row))
            said.setdefault(texts[-1][1], set()).add(who)
        stream = [[f"{one.head} NCCL INFO {init(one, RANKS)}"]]
        stream += [write(one, 12 + at, *text) for at, text in enumerate(texts)]
        streams.append((one, stream))
    log = _read(_mixed(chance, streams, PREFIXES[prefix]), chance)
    report = judge_log(log)
    assert report.processes == RANKS
    assert report.hosts == tuple(sorted({one.host for one in job}))
    seen: dict[str, set[tuple[str, int | None]]] = {}
    for _, text, name, pid in _writers_of(log):
        seen.setdefault(text, set()).add((name, pid))
    for text, known in seen.items():
        assert known <= said[text], text
    assert {text for text in said if text.startswith(tuple(map(_word, range(RANKS))))} <= set(seen)


def _check_watchdog(form: str, prefix: str, seed: int) -> None:
    """Some ranks' watchdogs write; these are named, and no others."""
    chance = Random(f"{form} {prefix} {seed}")  # noqa: S311 - no secret
    job = writers(RANKS, HOSTS[chance.choice(sorted(HOSTS))])
    init = INITS[chance.choice(sorted(INITS))]
    chosen = set(chance.sample(range(RANKS), 20))
    streams = []
    for one in job:
        stream = [[f"{one.head} NCCL INFO {init(one, RANKS)}"]]
        if one.rank in chosen:
            stream.append([TORCH_FORMS[form](one, chance.randrange(60))])
        streams.append((one, stream))
    log = _read(_mixed(chance, streams, PREFIXES[prefix]), chance)
    report = judge_log(log)
    assert report.processes == RANKS
    names = {name for one in report.findings if one.lines for name in one.names}
    assert names == {f"rank {one.rank} ({one.host})" for one in job if one.rank in chosen}
    assert sum(one.lines for one in report.findings) == len(chosen)


def _sample(forms: Sequence[str]) -> list[tuple[str, str]]:
    """Return each form with two prefixes, and each prefix with a form at least."""
    some = Random(39)  # noqa: S311 - no secret
    names = sorted(PREFIXES)
    pairs = {(form, "none") for form in forms} | {(form, some.choice(names)) for form in forms}
    return sorted(pairs | {(some.choice(forms), name) for name in names})


@pytest.mark.parametrize(("form", "prefix"), _sample(list(NCCL_FORMS)))
def test_each_warning_is_its_own_process_s(form: str, prefix: str) -> None:
    _check_warnings(form, prefix, 0)


@pytest.mark.parametrize(("form", "prefix"), _sample(list(TORCH_FORMS)))
def test_each_line_of_the_watchdog_is_its_own_rank_s(form: str, prefix: str) -> None:
    _check_watchdog(form, prefix, 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", NCCL_FORMS)
def test_each_warning_is_its_own_process_s_through_all_prefixes(form: str, seed: int) -> None:
    for prefix in PREFIXES:
        _check_warnings(form, prefix, 1 + seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", TORCH_FORMS)
def test_each_line_of_the_watchdog_is_its_own_rank_s_through_all_prefixes(
    form: str, seed: int
) -> None:
    for prefix in PREFIXES:
        _check_watchdog(form, prefix, 1 + seed)


# Lines that processes write into each other.


def _torn(chance: Random, writes: list[str]) -> str:
    """Return texts one after the other; often one comes in the middle of the one before it."""
    text, rest = "", iter(writes)
    for one in rest:
        other = next(rest, "") if chance.random() < 0.4 else ""
        at = chance.randrange(1, len(one)) if other else len(one)
        text += f"{one[:at]}{other}\n{one[at:]}\n" if other else f"{one}\n"
    return text


def _check_torn(form: str, seed: int) -> None:
    """A line whose begin is torn off is of its own process, or of nobody that is named."""
    chance = Random(f"{form} {seed}")  # noqa: S311 - no secret
    job = writers(RANKS, HOSTS[chance.choice(sorted(HOSTS))])
    init = INITS[chance.choice(sorted(INITS))]
    begins = [f"{one.head} NCCL INFO {init(one, RANKS)}\n" for one in job]
    said, writes = {}, []
    for one in job:
        text = f"{_word(one.rank)} is what only this one says"
        said[_word(one.rank)] = f"rank {one.rank} ({one.host})", f"pid {one.pid}"
        writes.append("\n".join(NCCL_FORMS[form](one, 12, "a.cc:1", text)))
    for some in (begins, writes):
        chance.shuffle(some)
    log = _read(("".join(begins) + _torn(chance, writes)).splitlines(), chance)
    for _, text, name, _ in _writers_of(log):
        own = said.get(text[:3], ())  # of a text that is cut shorter nobody can tell whose it is
        nobody = "a process that is not named", *(f"GPU {at}" for at in range(8))
        assert not own or name in (*own, *nobody), text
    report = judge_log(log)
    assert report.processes == RANKS
    assert report.hosts == tuple(sorted({one.host for one in job}))


@pytest.mark.parametrize("form", NCCL_FORMS)
def test_a_torn_line_is_of_no_other_process(form: str) -> None:
    for seed in range(2):
        _check_torn(form, seed)


@pytest.mark.parametrize("host", ["n1", "gpu-n1", "1"])
def test_equal_pids_in_containers_of_other_tasks_are_not_one_process(host: str) -> None:
    """Of the second task no line says that it is in a communicator."""
    one, other = Writer(0, "gpu-n1", 1, 0), Writer(1, host, 1, 1)
    lines = [
        f"0: {one.head} NCCL INFO {INITS['2.22'](one, 2)}",
        f"1: {other.head} a.cc:1 NCCL WARN this one fails",
    ]
    chance = Random(1)  # noqa: S311 - no secret
    assert {name.partition(" (")[0] for *_, name, _ in _writers_of(_read(lines, chance))} == {
        "task 1"
    }


@pytest.mark.long
@pytest.mark.parametrize("form", NCCL_FORMS)
def test_a_torn_line_is_of_no_other_process_however_it_is_torn(form: str) -> None:
    for seed in range(2, 100):
        _check_torn(form, seed)


# Equal times.

# What puts one time before all lines, or none.
_WITHOUT_TIME = sorted(set(PREFIXES) - {"journal"})
_TORCH_TIMED = "PyTorch 2.4", "PyTorch 2.4, group", "PyTorch 2.5 to 2.13"


def _told(report: LogReport) -> object:
    """Return all that a report says but which of the lines it quotes."""
    first = report.first
    return (
        first and (first.rule.id, first.who, first.time_s, first.followers, first.within_s),
        sorted(
            (one.key, one.rule.id, one.severity, one.who, one.names, one.lines)
            for one in report.findings
        ),
    )


def _check_order(form: str, prefix: str, seed: int, orders: int) -> None:
    """Each process writes within four seconds; lines of one second come in any order."""
    chance = Random(f"{form} {prefix} {seed}")  # noqa: S311 - no secret
    job = writers(RANKS, HOSTS[chance.choice(sorted(HOSTS))])
    rows = chance.sample(LOUD, 24)
    begin = [
        PREFIXES[prefix](one.rank, one.host, f"{one.head} NCCL INFO {INITS['2.22'](one, RANKS)}")
        for one in job
    ]
    by_second: dict[int, list[tuple[Writer, Stream]]] = {}
    for one in job:
        for second in sorted(chance.choices(range(12, 16), k=3)):
            if chance.random() < 0.2:
                lines = [TORCH_FORMS[chance.choice(_TORCH_TIMED)](one, second)]
            else:
                lines = NCCL_FORMS[form](one, second, *_site(chance.choice(rows)))
            streams = by_second.setdefault(second, [])
            mine = next((stream for who, stream in streams if who is one), None)
            if mine is None:
                streams.append((one, [lines]))
            else:
                mine.append(lines)
    seen = []
    for _ in range(orders):
        lines = list(begin)
        for second in sorted(by_second):
            lines += _mixed(chance, by_second[second], PREFIXES[prefix])
        told = _told(judge_log(_read(lines, chance)))
        if told not in seen:
            seen.append(told)
    assert len(seen) == 1


@pytest.mark.parametrize("form", sorted(TIMED))
def test_the_order_of_equal_times_changes_no_finding(form: str) -> None:
    _check_order(form, "none", 0, 3)


@pytest.mark.long
@pytest.mark.parametrize(("form", "seed"), [*product(sorted(TIMED), SEEDS)])
def test_the_order_of_equal_times_changes_no_finding_through_any_prefix(
    form: str, seed: int
) -> None:
    for prefix in _WITHOUT_TIME:
        _check_order(form, prefix, 1 + seed, 6)
