# SPDX-License-Identifier: Apache-2.0
"""Whether an answer of RAS is of the job that was meant."""

from dataclasses import replace

from nccl_inspector.ras.find import RasPlace
from nccl_inspector.ras.origin import Origin, ask_job, find_origin
from nccl_inspector.ras.status import RasStatus, parse_status
from tests.support.ras_service import RasService, recorded, serving

NEW = (2, 32, 3)


def _ranks(*pids: int, host: str = "127.0.0.1") -> RasStatus:
    """The recorded answer with ranks of these processes on this host."""
    status = parse_status(recorded("healthy-2.32.3"))
    (comm,) = status.comms
    ranks = tuple(
        replace(rank, pid=pid, host=host) for rank, pid in zip(comm.ranks, pids, strict=False)
    )
    return replace(status, comms=(replace(comm, ranks=ranks),))


def test_an_answer_is_the_jobs_if_its_processes_or_its_communicators_are_in_it() -> None:
    status = _ranks(11, 12, 13)
    (comm,) = status.comms
    assert find_origin(status, {11, 12, 13, 14}, set()) is Origin.JOB
    assert find_origin(status, {99}, {(comm.hash, 2)}) is Origin.JOB  # ids of a container
    assert find_origin(status, {99}, {(comm.hash, 9), (comm.hash + 1, 2)}) is Origin.OTHER
    assert find_origin(status, {11, 12}, set()) is Origin.OTHER  # a stranger among them
    assert find_origin(status, set(), set()) is Origin.UNKNOWN
    assert find_origin(replace(status, comms=()), {11}, set()) is Origin.UNKNOWN


def test_ids_of_processes_on_other_hosts_neither_prove_nor_disprove() -> None:
    here, there = _ranks(11), _ranks(11, 12, host="10.0.0.2")
    both = replace(
        here, comms=(replace(here.comms[0], ranks=(*here.comms[0].ranks, *there.comms[0].ranks)),)
    )
    assert find_origin(both, {11}, set()) is Origin.JOB
    assert find_origin(there, {11}, set()) is Origin.OTHER


def test_where_two_jobs_share_a_port_it_asks_until_the_right_one_answers() -> None:
    mine = recorded("healthy-2.32.3").replace(b'"pid": ', b'"pid": 7')
    pids = frozenset(rank.pid for rank in parse_status(mine).comms[0].ranks)
    service = RasService(NEW, [recorded("healthy-2.32.3")] * 3 + [mine])
    with serving(service) as where:
        status, origin = ask_job(RasPlace(where, ("0",), pids), set())
    assert origin is Origin.JOB
    assert {rank.pid for rank in status.comms[0].ranks} == pids
    assert service.asked.count("STATUS") == 4
