# SPDX-License-Identifier: Apache-2.0
"""Who holds up whom, in dumps of NCCL's shape: states, members, Sends and Recvs, wrapped rings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.flight.describe import Told, describe
from nccl_inspector.flight.files import read_dumps
from nccl_inspector.model import rules
from nccl_inspector.model.card import LOW, WARNING
from tests.support.flight_dumps import dump, entry, write

WORLD = {"0": [0, 1, 2, 3]}
DONE = [entry(at, at + 1) for at in range(3)]
TP: dict[str, Any] = {"group": "1", "desc": "tp"}
DP: dict[str, Any] = {"group": "2", "desc": "dp"}

Ranks = Mapping[int, Mapping[str, Any]]


def tell(folder: Path, ranks: Ranks, later_s: float = 7, count: int | None = None) -> Told:
    return describe(read_dumps([write(folder, ranks, later_s)], count))


def one_title(folder: Path, ranks: Ranks, rule: rules.Rule, later_s: float = 7) -> str:
    (finding,) = tell(folder, ranks, later_s).findings
    assert finding.rule == rule.id
    return finding.title


def called(*more: Mapping[str, Any]) -> dict[str, Any]:
    return dump([*DONE, *more], WORLD)


def waits(seq: int = 4, **fields: Any) -> dict[str, Any]:
    return entry(seq - 1, seq, **{"state": "started"} | fields)


def test_a_rank_that_did_not_call_is_named(tmp_path: Path) -> None:
    ranks = {rank: called() if rank == 1 else called(waits()) for rank in range(4)}
    assert one_title(tmp_path, ranks, rules.FLIGHT_NOT_CALLED) == (
        "rank 1 did not call all_reduce 4 of default_pg; 3 others wait in it"
    )


def test_who_may_have_called_one_operation_too_many_is_told_without_an_accusation(
    tmp_path: Path,
) -> None:
    ranks = {rank: called(waits()) if rank == 1 else called() for rank in range(4)}
    told = tell(tmp_path, ranks)
    (finding,) = told.findings
    assert finding.rule == rules.FLIGHT_NOT_CALLED.id
    assert (
        finding.title == "rank 1 waits in all_reduce 4 of default_pg, which 3 others did not call"
    )
    assert "either it is one too many, or they stopped" in finding.detail
    assert (finding.entities, finding.confidence) == ((), LOW)


def test_who_holds_up_its_group_is_named_though_other_groups_have_nothing_to_do(
    tmp_path: Path,
) -> None:
    members = {"0": list(range(9)), "1": [0, 1, 2]}
    idle = dump(DONE, members)
    ranks = dict.fromkeys(range(2, 9), idle)
    ranks |= {rank: dump([*DONE, entry(3, 1, state="started", **TP)], members) for rank in (0, 1)}
    assert one_title(tmp_path, ranks, rules.FLIGHT_NOT_CALLED).startswith("rank 2 did not call")


@pytest.mark.parametrize("culprit", range(4))
def test_the_majority_decides_whoever_comes_first(tmp_path: Path, culprit: int) -> None:
    ranks = {rank: called(waits(sizes=(512,) if rank == culprit else (1024,))) for rank in range(4)}
    assert one_title(tmp_path, ranks, rules.FLIGHT_MISMATCHED) == (
        f"rank {culprit} called all_reduce Float [512]; most called all_reduce Float [1024]"
    )


def test_without_a_majority_all_are_named(tmp_path: Path) -> None:
    ranks = {rank: called(waits(sizes=(512 * (1 + rank % 2),))) for rank in range(4)}
    assert one_title(tmp_path, ranks, rules.FLIGHT_MISMATCHED).startswith(
        "ranks 0-3 called different things"
    )


def test_shapes_with_the_same_number_of_elements_match(tmp_path: Path) -> None:
    ranks = {rank: called(waits(sizes=(4, 256) if rank else (1024,))) for rank in range(4)}
    assert "all ranks called it" in one_title(tmp_path, ranks, rules.FLIGHT_NOT_ENDED)


def test_an_all_to_all_may_have_other_sizes_on_each_rank(tmp_path: Path) -> None:
    ranks = {rank: called(waits(op="all_to_all", sizes=(rank + 1,))) for rank in range(4)}
    assert "all ranks called it" in one_title(tmp_path, ranks, rules.FLIGHT_NOT_ENDED)


def test_a_rank_whose_gpu_has_not_started_holds_up_those_that_have(tmp_path: Path) -> None:
    ranks = {
        rank: called(waits(state="scheduled" if rank == 3 else "started")) for rank in range(4)
    }
    assert one_title(tmp_path, ranks, rules.FLIGHT_NOT_STARTED) == (
        "rank 3 called all_reduce 4 of default_pg, but its GPU has not started it; 3 others wait "
        "in it"
    )


def test_ranks_that_have_come_out_are_not_waiting(tmp_path: Path) -> None:
    """The root of a Broadcast is done when it has sent."""
    ranks = {
        rank: called(waits(op="broadcast", state="started" if rank else "completed"))
        for rank in range(4)
    }
    assert one_title(tmp_path, ranks, rules.FLIGHT_NOT_ENDED) == (
        "broadcast 4 of default_pg does not end for ranks 1-3, and all ranks called it"
    )


def test_a_missing_dump_is_the_first_suspect(tmp_path: Path) -> None:
    ranks = {rank: called(waits()) for rank in (0, 1, 3)}
    assert one_title(tmp_path, ranks, rules.FLIGHT_NO_DUMP) == (
        "rank 2 left no dump; 3 others wait in all_reduce 4 of default_pg"
    )


def test_a_missing_dump_for_which_nobody_waits_is_a_warning(tmp_path: Path) -> None:
    (finding,) = tell(tmp_path, {rank: called() for rank in (0, 1, 3)}).findings
    assert (finding.rule, finding.severity) == (rules.FLIGHT_NO_DUMP.id, WARNING)
    assert finding.title == "rank 2 of 4 ranks left no dump"


def test_the_number_of_ranks_shows_that_the_last_dumps_are_missing(tmp_path: Path) -> None:
    ranks = {rank: dump(DONE) for rank in range(4)}
    assert tell(tmp_path, ranks).findings == ()
    (finding,) = tell(tmp_path, ranks, count=6).findings
    assert finding.title == "ranks 4-5 of 6 ranks left no dump"


def test_operations_that_are_young_when_the_dump_is_written_are_in_flight(tmp_path: Path) -> None:
    ranks = {rank: called(waits()) for rank in range(4)}
    found = tell(tmp_path, ranks, later_s=0.2)
    assert (found.findings, found.in_flight) == ((), 1)
    assert len(tell(tmp_path, ranks, later_s=20).findings) == 1


def test_waiting_is_followed_over_groups_to_its_root(tmp_path: Path) -> None:
    """Rank 0 waits in dp for rank 2, which waits in tp for rank 3, which is elsewhere."""
    pairs = {"1": [0, 1], "2": [0, 2], "3": [2, 3]}
    used = [entry(0, 1, **TP), entry(1, 1, **DP)]
    other: dict[str, Any] = {"group": "3", "desc": "tp"}
    ranks = {
        0: dump([*used, entry(2, 2, state="started", **DP)], pairs),
        1: dump([entry(0, 1, **TP), entry(1, 2, state="started", **TP)], pairs),
        2: dump([entry(0, 1, **DP), entry(1, 1, **other), entry(2, 2, state="started", **other)],
                pairs),
        3: dump([entry(0, 1, **other)], pairs),
    }  # fmt: skip
    (finding,) = tell(tmp_path, ranks).findings
    assert finding.title == "rank 3 did not call all_reduce 2 of tp (3); 1 other waits in it"
    assert "2 other operations wait for the same." in finding.detail


def test_groups_used_in_different_orders_are_a_circle(tmp_path: Path) -> None:
    both = {"1": [0, 1], "2": [0, 1]}
    ranks = {
        0: dump([entry(0, 1, state="started", **TP)], both),
        1: dump([entry(0, 1, state="started", **DP)], both),
    }
    title = one_title(tmp_path, ranks, rules.FLIGHT_DEADLOCK)
    assert title == (
        "rank 0 is in all_reduce 1 of tp, rank 1 is in all_reduce 1 of dp: each waits for another"
    )


def test_what_is_queued_behind_another_operation_is_not_the_cause(tmp_path: Path) -> None:
    """Rank 0 has already queued the next operation, in which rank 1 is."""
    both = {"1": [0, 1, 2], "2": [0, 1]}
    ranks = {
        0: dump([entry(0, 1, state="started", **TP), entry(1, 1, state="scheduled", **DP)], both),
        1: dump([entry(0, 1, state="completed", **TP), entry(1, 1, state="started", **DP)], both),
        2: dump([entry(0, 7, group="9", desc="other")], {"9": [2], **both}),
    }
    assert one_title(tmp_path, ranks, rules.FLIGHT_NOT_CALLED) == (
        "rank 2 did not call all_reduce 1 of tp; 1 other waits in it"
    )


# Sends and Recvs; the numbers in their names are those in the group.


def p2p(record_id: int, seq: int, op: str, state: str = "completed") -> dict[str, Any]:
    return entry(record_id, seq, op, state=state, group="5", desc="pipe")


PIPE = {"5": [2, 6]}


def test_a_recv_whose_send_was_not_called_names_the_sender_by_its_global_rank(
    tmp_path: Path,
) -> None:
    ranks = {
        2: dump([p2p(0, 1, "send 0->1")], PIPE),
        6: dump([p2p(0, 1, "recv 1<-0"), p2p(1, 2, "recv 1<-0", "started")], PIPE),
    }
    found = tell(tmp_path, ranks).findings
    assert found[0].title == "rank 2 did not call send 2->6 of pipe; 1 other waits in the recv"


def test_a_recv_whose_send_has_ended_is_on_its_way(tmp_path: Path) -> None:
    ranks = {
        2: dump([p2p(0, 1, "send 0->1"), p2p(1, 2, "send 0->1")], PIPE),
        6: dump([p2p(0, 1, "recv 1<-0"), p2p(1, 2, "recv 1<-0", "started")], PIPE),
    }
    assert tell(tmp_path, ranks).findings[0].rule == rules.FLIGHT_NOT_ENDED.id


def test_two_ranks_that_both_send_first_are_a_circle(tmp_path: Path) -> None:
    ranks = {
        2: dump([p2p(0, 1, "send 0->1", "started")], PIPE),
        6: dump([p2p(0, 1, "send 1->0", "started")], PIPE),
    }
    assert tell(tmp_path, ranks).findings[0].rule == rules.FLIGHT_DEADLOCK.id


def test_a_batch_has_the_state_of_its_last_record(tmp_path: Path) -> None:
    """NCCL tells the end of a batch only in the record `coalesced`."""
    batch = [p2p(1, 3, "send 0->1", "scheduled"), p2p(2, 3, "recv 0<-1", "scheduled")]
    closing = entry(3, 0, "coalesced", group="5", desc="pipe", is_p2p=True, p2p_seq_id=3,
                    collective_seq_id=0)  # fmt: skip
    other = [p2p(1, 3, "send 1->0", "scheduled"), p2p(2, 3, "recv 1<-0", "scheduled")]
    ranks = {2: dump([*batch, closing], PIPE), 6: dump([*other, closing], PIPE)}
    assert tell(tmp_path, ranks, count=None).findings[0].title.endswith("left no dump")
    open_ = closing | {"state": "started"}
    ranks = {2: dump([*batch, open_], PIPE), 6: dump([*other, open_], PIPE)}
    assert tell(tmp_path, ranks).findings[0].rule == rules.FLIGHT_NOT_ENDED.id


# Rings that have wrapped, and dumps that cannot be read.


def test_a_rank_whose_records_of_a_group_were_overwritten_is_not_accused(tmp_path: Path) -> None:
    both = {"1": [0, 1], "2": [0, 1]}
    busy = [entry(50 + at, 20 + at, **TP) for at in range(4)]
    ranks = {
        0: dump([*busy, entry(60, 5, state="started", **DP)], both),
        1: dump(busy, both),
    }
    (finding,) = tell(tmp_path, ranks).findings
    assert finding.rule == rules.FLIGHT_NOT_KNOWN.id
    assert "It is not known whether rank 1 called it." in finding.detail


def test_a_rank_that_is_behind_in_the_group_is_accused_though_its_ring_wrapped(
    tmp_path: Path,
) -> None:
    old = [entry(50 + at, 20 + at) for at in range(4)]
    ranks = {0: dump([*old, entry(54, 24, state="started")], {"0": [0, 1]}),
             1: dump(old, {"0": [0, 1]})}  # fmt: skip
    assert one_title(tmp_path, ranks, rules.FLIGHT_NOT_CALLED).startswith("rank 1 did not call")


def test_a_rank_whose_dump_cannot_be_read_is_not_accused(tmp_path: Path) -> None:
    write(tmp_path, {rank: called(waits()) for rank in range(4)})
    path = tmp_path / "comm_lib_trace_rank_2"
    os.truncate(path, 100)
    os.utime(path, ns=(path.with_name("comm_lib_trace_rank_0").stat().st_mtime_ns,) * 2)
    first, second = describe(read_dumps([tmp_path])).findings
    assert first.rule == rules.FLIGHT_NOT_KNOWN.id
    assert second.rule == rules.FLIGHT_UNREADABLE.id
    assert second.title == f"{path}: it ends early"


def test_a_known_root_comes_first_and_groups_of_one_name_are_one_finding(tmp_path: Path) -> None:
    groups = {"0": [*range(8)]} | {str(at): [2 * at, 2 * at + 1] for at in range(1, 4)}

    def rank(at: int) -> dict[str, Any]:
        pair = entry(0, 3, group=str(at // 2), desc="tp", state="started")
        return dump([pair, entry(1, 9, state="started")] if at != 1 else [entry(0, 8)], groups)

    first, second = tell(tmp_path, {at: rank(at) for at in range(2, 8)} | {
        0: dump([entry(1, 9, state="started")], groups), 1: rank(1)}).findings  # fmt: skip
    assert first.title == "rank 1 did not call all_reduce 9 of default_pg; 7 others wait in it"
    assert second.rule == rules.FLIGHT_NOT_ENDED.id
    assert second.detail.endswith("So it is with 2 other operations of groups of this name.")


def _batch(*ops: str, state: str = "started") -> dict[str, Any]:
    """Return a rank that called a batch; its members stay scheduled while it runs."""
    member = "completed" if state == "completed" else "scheduled"
    rows = [entry(0, 1), *(entry(1 + at, 1, op, state=member) for at, op in enumerate(ops))]
    rows.append(entry(9, 1, "coalesced", state=state, is_p2p=True, p2p_seq_id=1))
    return dump(rows, {"0": [0, 1, 2]})


@pytest.mark.parametrize(
    ("mine", "theirs", "missing"),
    [
        (("send 0->1", "recv 0<-1"), ("recv 1<-0",), "send 1->0"),
        (("send 0->1", "recv 0<-1"), ("send 1->0",), "recv 0->1"),
        (("recv 0<-1", "recv 0<-1"), ("send 1->0",), "send 1->0"),
        (("send 0->1", "send 0->1"), ("recv 1<-0",), "recv 0->1"),
    ],
)
def test_a_call_that_is_missing_behind_a_matched_pair_of_a_batch_is_named(
    tmp_path: Path, mine: tuple[str, ...], theirs: tuple[str, ...], missing: str
) -> None:
    ranks = {0: _batch(*mine), 1: _batch(*theirs), 2: dump([entry(0, 1)], {"0": [0, 1, 2]})}
    found = tell(tmp_path, ranks).findings
    assert [one.rule for one in found] == [rules.FLIGHT_NOT_CALLED.id]
    assert found[0].title.startswith(f"rank 1 did not call {missing} of default_pg")


def test_a_batch_that_both_called_alike_accuses_nobody(tmp_path: Path) -> None:
    ranks = {0: _batch("send 0->1", "recv 0<-1"), 1: _batch("recv 1<-0", "send 1->0"),
             2: dump([entry(0, 1)], {"0": [0, 1, 2]})}  # fmt: skip
    assert {one.rule for one in tell(tmp_path, ranks).findings} == {rules.FLIGHT_NOT_ENDED.id}
