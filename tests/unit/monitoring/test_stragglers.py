# SPDX-License-Identifier: Apache-2.0
"""The straggler alert says what the others wait, soon, of the process that causes it and no other.

A job of four nodes with four GPUs each: tensor parallel within a node (tp), replicas across nodes
(dp), and at times more. A step takes a second; the change comes after ten minutes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nccl_inspector.monitoring.site import make_site
from tests.simulator import truth
from tests.simulator.case import who_is
from tests.simulator.faults import SlowGpu
from tests.simulator.job import Job
from tests.simulator.machine import Machine
from tests.simulator.making import Scenario, make_job
from tests.simulator.plans import of_program
from tests.simulator.play import play
from tests.simulator.programs import MB, Pipeline
from tests.support.marks import long_but
from tests.support.played_series import played_series
from tests.support.promtool import Expected, Series, failures, texts_of_alert
from tests.support.promtool import rules_of as rules

OWN = {"cluster": "c", "slurm_job_id": "7"}
NODES = GPUS = 4
ONSET_S, END_S, EVERY_S = 600, 1800, 30
SITE = make_site([])
FIRING = 'ALERTS{alertname="NcclStraggler", alertstate="firing"}'
LATE = (2, 1)  # the process of whom the tests speak: node and GPU

Busy = Mapping[tuple[str, int, int], float]  # s of a step, by communicator's name, node and GPU


def job(busy: Busy, comms: tuple[str, ...] = ("tp", "dp")) -> Iterator[Series]:
    """Each communicator does one AllReduce a step of 20 ms, and after the change of `busy`."""
    for node in range(NODES):
        for gpu in range(GPUS):
            for name in comms:
                inside = name.startswith("tp")
                labels = OWN | {
                    "node": f"n{node + 1}", "gpu": f"GPU{gpu}",
                    "rank": str(gpu if inside else node),
                    "comm": f"{name}{node if inside else gpu}", "comm_name": name,
                    "n_nodes": "1" if inside else str(NODES), "nranks": "4",
                    "collective": "AllReduce", "message_size": "1-2MB", "algo_proto": "RING_SIMPLE",
                }  # fmt: skip
                after_s = busy.get((name, node, gpu), 0.02)
                seconds = [0.02 * min(at, ONSET_S) + after_s * max(0, at - ONSET_S)
                           for at in range(0, END_S, EVERY_S)]  # fmt: skip
                yield Series("nccl_collective_operations_total", labels,
                             " ".join(str(at) for at in range(0, END_S, EVERY_S)))  # fmt: skip
                yield Series("nccl_collective_busy_seconds_total", labels,
                             " ".join(f"{one:.6g}" for one in seconds))  # fmt: skip


def late_by(seconds: float, comms: tuple[str, ...] = ("tp", "dp")) -> Busy:
    """The late process computes so much longer in a step: all others wait for it."""
    node, gpu = LATE
    peers = {(comms[0], node, other): 0.02 + seconds for other in range(GPUS) if other != gpu}
    return peers | {
        (comms[1], other, rank): 0.02 + seconds
        for other in range(NODES) if other != node for rank in range(GPUS)
    }  # fmt: skip


def slow_link() -> Busy:
    """The adapter of one GPU is slow: its replicas take longer, and they come late to tp."""
    rail = {("dp", node, 1): 0.42 for node in range(NODES)}
    return rail | {("tp", node, gpu): 0.42 for node in range(NODES) for gpu in (0, 2, 3)}


def in_each(seconds: float, names: tuple[str, ...]) -> Busy:
    """The late process comes late to each communicator of all replicas in turn."""
    return {(name, node, gpu): 0.02 + seconds for name in names
            for node in range(NODES) if node != LATE[0] for gpu in range(GPUS)}  # fmt: skip


def at(seconds: float) -> float:
    return (ONSET_S + seconds) / 60


def named(*places: tuple[int, int]) -> list[dict[str, str]]:
    return [{"node": f"n{node + 1}", "gpu": f"GPU{gpu}"} for node, gpu in places]


WHO = f"count by (node, gpu) ({FIRING})"


def test_who_is_late_by_much_is_named_within_five_minutes_and_its_peers_are_not(
    tmp_path: Path,
) -> None:
    series = list(job(late_by(0.4)))
    ever = f"count by (node, gpu) (count_over_time({FIRING}[20m]) > 0) ^ 0"
    share = "abs(gpu:nccl_collective_late:ratio - 0.4) < bool 0.01 == 1"
    wanted = [
        Expected(at(0), WHO, []),
        Expected(at(300), WHO, named(LATE)),
        Expected(29, ever, named(LATE)),
        Expected(29, f"max by (node, gpu) ({share})", named(LATE)),
    ]
    assert failures(tmp_path, SITE, series, wanted, "30s") == []


def test_who_is_late_by_little_is_named_when_it_lasts(tmp_path: Path) -> None:
    series = list(job(late_by(0.1)))
    wanted = [Expected(at(590), WHO, []), Expected(at(800), WHO, named(LATE))]
    assert failures(tmp_path, SITE, series, wanted, "30s") == []


def test_the_share_is_that_of_all_communicators(tmp_path: Path) -> None:
    names = ("dp", "dp_grads", "dp_norm", "dp_loss")
    busy = {**in_each(0.16, names)}
    series = [one for one in job(busy, names) if one.labels["gpu"] == f"GPU{LATE[1]}"]
    (said,) = texts_of_alert(tmp_path, rules(SITE), series, "NcclStraggler", [at(600)], "30s")
    assert "            1:" not in said, "one alert for a process"
    assert "Job 7: its other ranks wait for n3 GPU1 64% of the time" in said


def pipeline(slow: int, size: float, weights: tuple[float, ...]) -> tuple[Job, truth.Truth]:
    """Four stages, a node each, of four replicas: each rank is a stage of a replica."""
    chance = np.random.default_rng(slow)
    where = Machine(nodes=NODES, gpus=GPUS, nics=GPUS)
    program = Pipeline(
        where, step_s=3.0, stages=NODES, tp=1, batches=2 * NODES, layer_bytes=16 * MB,
        grads_bytes=200 * MB, weights=weights,
    )  # fmt: skip
    plan = of_program(chance, slow, where, program, (60.0, 60.0))
    plan = replace(plan, phases=replace(plan.phases, evaluate_every_s=0, save_every_s=0))
    faults = (SlowGpu(size, ranks=(slow,)),) if size else ()
    guilty, related = who_is(plan, slow) if size else (frozenset(), frozenset())
    late, slower = frozenset({truth.STRAGGLER}), frozenset({truth.DEGRADED})
    known = (late, slower, guilty, related) if size else ()
    return make_job(Scenario(plan, faults, 0.0, *known), slow)


UNEVEN = (1.0, 1.3, 1.0, 1.0)
PIPELINES: dict[str, tuple[int, float, tuple[float, ...]]] = {
    "a rank of the first stage": (1, 0.6, ()),
    "a rank of an inner stage": (5, 0.6, ()),
    "a rank of the last stage": (13, 0.6, ()),
    "a rank of the stage that computes longest": (5, 0.2, UNEVEN),
    "a rank behind the stage that computes longest": (9, 0.6, UNEVEN),
    "nobody": (0, 0.0, ()),
    "nobody, and one stage computes longest": (0, 0.0, UNEVEN),
}


@pytest.mark.parametrize("who", long_but(["a rank of an inner stage", "nobody"], PIPELINES))
def test_of_a_pipeline_the_share_is_what_the_job_lost(tmp_path: Path, who: str) -> None:
    """Each stage waits for the others in Sends and Recvs, whoever is late."""
    played, true = pipeline(*PIPELINES[who])
    series = list(played_series(play(played, tmp_path / "job"), OWN, true.wall_s, 32))
    late = "gpu:nccl_collective_late:ratio"
    place = [one.split() for kind, one in true.guilty if kind == "gpu"]
    guilty = [{"node": node, "gpu": gpu} for node, gpu in place]
    low, high = 0.9 * true.cost_share, 1.3 * true.cost_share
    wanted = [Expected(15, f"count by (node, gpu) ({late} > 0.05)", guilty)]
    if guilty:
        wanted.append(Expected(15, f"count by (node, gpu) ({late} > {low} < {high})", guilty))
    assert failures(tmp_path, SITE, series, wanted, "30s") == []


@pytest.mark.parametrize("busy", [slow_link(), {}], ids=["a slow link", "nothing"])
def test_a_process_with_slow_transfers_is_no_straggler(tmp_path: Path, busy: Busy) -> None:
    ever = f"count(count_over_time({FIRING}[20m]))"
    old = 'count(rank:nccl_collective_late:ratio{comm_name="tp"} > 0.2) == bool 4'
    wanted = [Expected(29, ever, []), *([Expected(29, old, [{}])] if busy else [])]
    assert failures(tmp_path, SITE, list(job(busy)), wanted, "30s") == []


@pytest.mark.long
def test_a_late_spell_of_a_minute_is_no_alert(tmp_path: Path) -> None:
    series = []
    for one in job(late_by(0.4)):
        words = one.values.split()
        if "busy" in one.name:
            last = (ONSET_S + 60) // EVERY_S
            rest = [f"{float(words[last]) + 0.02 * EVERY_S * step:.6g}"
                    for step in range(1, len(words) - last)]  # fmt: skip
            words = words[: last + 1] + rest
        series.append(Series(one.name, one.labels, " ".join(words)))
    ever = f"count(count_over_time({FIRING}[20m]))"
    assert failures(tmp_path, SITE, series, [Expected(29, ever, [])], "30s") == []
