# SPDX-License-Identifier: Apache-2.0
"""What RAS said of a job, as text of 80 columns: what is wrong first, then counts beside ours."""

from collections.abc import Iterator, Sequence

from nccl_inspector.model.table_columns import fit_columns, make_columns, row_text
from nccl_inspector.model.wording import number
from nccl_inspector.nccl_log.results import said_result
from nccl_inspector.ras.beside import OwnByRank, OwnCounts
from nccl_inspector.ras.judge import JudgedComm, JudgedRank, State

COLUMNS = 80
ROWS_SHOWN = 16
_TABLE = make_columns(
    "RANK", "HOST:", "PID", "GPU", "LAUNCHED", "MOVED", "ENQUEUED", "BEGUN", "COMPLETED"
)


def _count(value: int | None) -> str:
    return "-" if value is None or value < 0 else str(value)


def _row(rank: JudgedRank, own: OwnCounts | None) -> tuple[str, ...]:
    ours = (own.enqueued, own.started, own.completed) if own else (None, None, None)
    return (
        _count(rank.rank), rank.host, _count(rank.pid), _count(rank.gpu), _count(rank.launched),
        _count(rank.moved), *map(_count, ours),
    )  # fmt: skip


def _trouble(rank: JudgedRank) -> str:
    where = f"rank {_count(rank.rank)} ({rank.host}, pid {_count(rank.pid)}) {rank.state}"
    if rank.state is State.ERROR:
        return f"{where}: {said_result(rank.result)}"
    if rank.state is State.BEHIND:
        return f"{where}: {number(rank.behind, 'collective')} fewer, most in {rank.behind_in}"
    return where


def _comm_lines(comm: JudgedComm, own: OwnByRank, everything: bool) -> Iterator[str]:
    yield f"COMMUNICATOR 0x{comm.hash:x}, {number(comm.size, 'rank')}"
    unwell = comm.unwell
    limit = len(comm.ranks) if everything else ROWS_SHOWN
    for rank in unwell[:limit]:
        yield f"  {_trouble(rank)}"
    if len(unwell) > limit:
        yield f"  and {len(unwell) - limit} more (--all)"
    if comm.stands_still:
        yield "  no rank has launched a collective between the looks"
    here = [one for one in comm.ranks if (comm.hash, one.rank) in own]
    shown = list(dict.fromkeys([*unwell, *here, *comm.ranks]))[:limit]
    rows = [_row(one, own.get((comm.hash, one.rank))) for one in sorted(shown, key=_by_rank)]
    widths = fit_columns(_TABLE, rows, COLUMNS - 2)
    yield "  " + row_text(_TABLE, widths, [column.title for column in _TABLE])
    for row in rows:
        yield "  " + row_text(_TABLE, widths, row)
    if len(shown) < len(comm.ranks):
        yield f"  and {len(comm.ranks) - len(shown)} more (--all)"


def _by_rank(rank: JudgedRank) -> int:
    return rank.rank


def status_lines(
    comms: Sequence[JudgedComm], own: OwnByRank, *, everything: bool = False
) -> Iterator[str]:
    """Yield the lines for all communicators, those with something wrong first."""
    if not comms:
        yield "no communicator"
    for comm in comms:
        yield from _comm_lines(comm, own, everything)
    yield "LAUNCHED, MOVED: collectives that RAS saw launched, and since the first look."
    yield "RAS does not see what has ended. ENQUEUED, BEGUN, COMPLETED: all operations"
    yield "of ranks on this node, by the plugin."
    if not any(comm.unwell for comm in comms):
        yield "RAS has nothing against any rank."
