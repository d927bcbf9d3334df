# SPDX-License-Identifier: Apache-2.0
"""The index of reports, the same tests in each engine: what goes in comes out, and is found."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import func, select

from nccl_inspector.commands.nodes import nodes as nodes_command
from nccl_inspector.model.card import Environment
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.errors import UnstorableError
from nccl_inspector.store.index import put, put_if_taken, reading, writing
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.queries import (
    JobFilter,
    Owner,
    find_jobs,
    last_jobs,
    nodes_query,
    own_past,
)
from nccl_inspector.store.tables import ENTITIES, JOB_NODES, KINDS
from tests.support.boxes import fixed_chance
from tests.support.stored_cards import UID, card, communicator, ids, keep, operations

OTHER_UID = 4712
TABLES = KINDS, ENTITIES, JOB_NODES


def test_a_card_is_found_by_user_partition_verdict_and_time(index_place: IndexPlace) -> None:
    keep(
        index_place, card(1, end_s=100.0), card(2, end_s=300.0, partition="cpu"),
        card(3, end_s=200.0, user="bob", named="n1"),
    )  # fmt: skip
    assert ids(index_place, JobFilter()) == [2, 3, 1]
    assert ids(index_place, JobFilter(user="bob")) == [3]
    assert ids(index_place, JobFilter(partition="cpu")) == [2]
    assert ids(index_place, JobFilter(verdict="degraded")) == [3]
    assert ids(index_place, JobFilter(verdict="straggler")) == [3]
    assert ids(index_place, JobFilter(since_s=200.0)) == [2, 3]
    assert ids(index_place, JobFilter(until_s=200.0)) == [1]
    assert ids(index_place, JobFilter(job_ids=(1, 3))) == [3, 1]
    assert ids(index_place, JobFilter(limit=1)) == [2]


def test_rows_that_the_engine_refuses_cost_no_others(index_place: IndexPlace) -> None:
    keep(index_place, card(2, named="n1"))
    good, odd = rows_of(card(1)), rows_of(card(2))
    odd = replace(odd, job=replace(odd.job, ranks=1 << 70))
    with writing(index_place, None) as index:
        assert [put_if_taken(index, rows) for rows in (good, odd)] == [True, False]
    with reading(index_place) as (index, _):
        assert {job.job_id for job in find_jobs(index, JobFilter())} == {1, 2}
        assert index.scalar(select(func.count()).select_from(JOB_NODES)), (
            "those of 2 are still there"
        )
    with (
        pytest.raises(UnstorableError, match="refuses a report's rows"),
        writing(index_place, None) as index,
    ):
        put(index, odd)


def test_an_attempt_that_is_stored_again_replaces_its_rows(index_place: IndexPlace) -> None:
    keep(index_place, card(1, named="n1"), card(1, restart=1), card(1, gbs=50.0))
    with reading(index_place) as (index, _):
        assert len(find_jobs(index, JobFilter())) == 2
        counts = [index.scalar(select(func.count()).select_from(one)) for one in TABLES]
    assert counts == [2, 0, 4]


def test_many_jobs_that_are_less_alike_hide_none_that_is_just_like_it(
    index_place: IndexPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.store.queries._PAST_MAX", 3)
    other = Environment(nccl=("2.18.1",), gpu_models=("H100",))
    keep(
        index_place,
        card(1),
        card(2),
        *(replace(card(10 + at), environment=other) for at in range(9)),
    )
    (kind,) = rows_of(card(7)).kinds
    with reading(index_place) as (index, _):
        found = own_past(index, [kind.key], Owner(UID, "amy"), 7)[kind.key]
    assert [one.job_id for one in found] == [18, 17, 16, 2, 1]


def test_of_many_jobs_each_user_has_a_share_of_those_that_are_looked_at(
    index_place: IndexPlace,
) -> None:
    keep(index_place, card(1, end_s=10.0, user="bob", uid=OTHER_UID))
    keep(index_place, *(card(10 + at, end_s=1000.0 + at) for at in range(10)))
    with reading(index_place) as (index, _):
        assert [job.job_id for job in last_jobs(index, 4).jobs] == [19, 18, 17, 1]


def test_a_warnings_node_is_named_in_its_job_and_no_other(index_place: IndexPlace) -> None:
    keep(index_place, card(1, named="n2 GPU3"), card(2, named="n22"))
    with reading(index_place) as (index, _):
        last = last_jobs(index, 10)
    places = zip(last.seats.job, last.seats.node, last.seats.named, strict=True)
    seen = {(last.jobs[job].job_id, last.nodes[node]): named for job, node, named in places}
    assert seen == {(1, "n1"): False, (1, "n2"): True, (2, "n1"): False, (2, "n2"): False}


def test_all_nodes_of_a_job_come_as_one_row(index_place: IndexPlace) -> None:
    """A row for each of its nodes would be a million rows of the last jobs."""
    keep(index_place, card(1, nodes="n[1-512]", named="n7"), card(2, nodes="n[1-11]"))
    with reading(index_place) as (index, _):
        rows = index.execute(nodes_query(index.dialect.name)).all()
        last = last_jobs(index, 10)
    assert len(rows) == 2
    assert np.bincount(last.seats.job).tolist() == [11, 512]
    (named,) = last.seats.node[last.seats.named]
    assert last.nodes[named] == "n7"
    assert sorted(last.nodes) == sorted(f"n{at}" for at in range(1, 513))


def test_scores_within_a_job_come_back_as_they_were_written(index_place: IndexPlace) -> None:
    chance = fixed_chance(11)
    rows = rows_of(card(1, nodes="n[1-400]"))
    scores = [0.0, 1e-300, -2.0 / 3, *(chance.gauss(0, 0.02) for _ in rows.nodes[3:])]
    nodes = tuple(replace(one, local=value) for one, value in zip(rows.nodes, scores, strict=True))
    with writing(index_place, None) as index:
        put(index, replace(rows, nodes=nodes))
    with reading(index_place) as (index, _):
        last = last_jobs(index, 10)
    found = {last.nodes[node]: last.seats.value[at] for at, node in enumerate(last.seats.node)}
    assert found == {one.node: one.local for one in nodes}


def test_the_node_of_a_slow_communicator_is_told_apart_within_its_job() -> None:
    comms = [communicator(f"0x{at}", [f"n{at}"], "tp") for at in range(1, 5)]
    slow = replace(
        card(nodes="n[1-4]", communicators=comms),
        operations=tuple(operations(one.id, 60.0 if one.id == "0x3" else 100.0) for one in comms),
    )
    local = {row.node: row.local for row in rows_of(slow).nodes}
    assert local.pop("n3") == pytest.approx(-0.51, abs=0.01)
    assert local == {"n1": 0.0, "n2": 0.0, "n4": 0.0}


def test_the_past_of_a_kind_is_of_successful_jobs_of_that_user(index_place: IndexPlace) -> None:
    others = [card(n, gbs=90.0 + n) for n in range(1, 8)]
    failed = card(20, state="FAILED")
    older = replace(card(21), environment=Environment(nccl=("2.18.1",), gpu_models=("H100",)))
    keep(index_place, *others, failed, older, card(22, uid=OTHER_UID, user="bob"))
    (kind,) = rows_of(card(7)).kinds
    with reading(index_place) as (index, _):
        found = own_past(index, [kind.key], Owner(UID, "amy"), 7)[kind.key]
    assert [one.job_id for one in found] == [21, 6, 5, 4, 3, 2, 1]
    assert (found[0].key.nccl, found[1].bus_gbs) == ("2.18", 96.0)


def test_nodes_counts_users_and_only_if_asked_each_job(index_place: IndexPlace) -> None:
    conf = index_place.store_dir.parent / "x.conf"
    conf.write_text(
        f"store_dir = {index_place.store_dir}\nstore_url = {index_place.url}\ncluster = c1\n"
    )
    pairs = [(1, 2), (2, 3), (3, 4), (4, 1)]
    # Of one user only; wherever n4 takes part it is slow.
    for number in range(40):
        nodes = [f"n{at}" for at in pairs[number % 4]]
        comms = [communicator(nodes=nodes)]
        gbs = (60.0 if "n4" in nodes else 100.0) + number % 3
        keep(index_place, card(number + 1, gbs=gbs, nodes=",".join(nodes), communicators=comms))

    def suspects(*words: str) -> list[str]:
        done = CliRunner().invoke(nodes_command, ["--conf", str(conf), "--json", *words])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)["nodes"]
        assert {one["users"] for one in found} == {1}
        return [one["node"] for one in found if one["z"] is not None]

    assert suspects() == []
    assert set(suspects("--each-job")) == {"n1", "n2", "n3", "n4"}


def test_half_of_a_character_in_a_text_does_not_stop_the_index(index_place: IndexPlace) -> None:
    keep(index_place, card(1, user="a\ud800my"))
    with reading(index_place) as (index, _):
        (job,) = find_jobs(index, JobFilter("", "", "", None, 10))
    assert job.user == "a?my"
