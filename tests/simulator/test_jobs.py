# SPDX-License-Identifier: Apache-2.0
"""The simulated jobs are what they say: hand calculations, and what a fault must change."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.simulator.cases import CASES, make
from tests.simulator.endings import Dies, StopsCalling
from tests.simulator.engine import Noise, World
from tests.simulator.faults import Fault, LateHost, SlowGpu, SlowNic, When
from tests.simulator.job import FUNCS, NEVER, Job
from tests.simulator.machine import GB, MS, US, Floats, Machine, S
from tests.simulator.programs import (
    MB,
    Ddp,
    Pipeline,
    Program,
    TensorData,
    one_forward_one_backward,
)
from tests.simulator.running import Phases, Plan, Run, run, to_job, transfer_times
from tests.simulator.solvers import EACH_PHASE, Halo, Phased

MACHINE = Machine(nodes=2, gpus=4, nics=4)
QUIET = Noise(
    compute=0.0, tail_ms=0.0, gpus=0.0, host=0.0, transfer=0.0, end_us=0.0, pause_share=0.0,
    weather=0.0, bursts_per_hour=0.0,
)  # fmt: skip
PLAIN = Phases(warm_up=1.0, log_every=0)


def ddp(noise: Noise = QUIET, steps: int = 40) -> Plan:
    return Plan(MACHINE, lambda: Ddp(MACHINE, step_s=1.0), 1, steps=steps, noise=noise,
                phases=PLAIN)  # fmt: skip


def tensor(noise: Noise = QUIET, steps: int = 40) -> Plan:
    return Plan(MACHINE, lambda: TensorData(MACHINE, step_s=1.0, tp=4), 1, steps=steps,
                noise=noise, phases=PLAIN)  # fmt: skip


def share(slow: Run, clean: Run) -> float:
    return float((slow.wall_ns - clean.wall_ns) / (slow.wall_ns - clean.begins[0]))


def step_s(done: Run) -> float:
    return float(np.median(np.diff(done.begins[5:]))) / S


def test_members_of_a_collective_end_together() -> None:
    job = to_job(ddp(Noise()), run(ddp(Noise())))
    ends = np.stack([rank.operations["end_ns"] for rank in job.ranks])
    begins = np.stack([rank.operations["begin_ns"] for rank in job.ranks])
    assert np.ptp(ends, axis=0).max() < 20 * US
    assert (ends.min(axis=0) > begins.max(axis=0)).all()


def test_the_transfer_takes_what_the_slowest_link_allows() -> None:
    plan = ddp()
    times = transfer_times(run(plan))
    (time_ns, count), *_ = [one for (_, _, size), one in times.items() if size == 26]
    nbytes, size = 100 * MB, 8
    by_hand_ns = 2 * (size - 1) / size * nbytes / (4 * MACHINE.nic_gbs * GB) * S
    assert count == 40 * 11
    assert time_ns == pytest.approx(by_hand_ns, rel=0.1)


def test_the_same_seed_is_the_same_job() -> None:
    one, other = (to_job(tensor(Noise()), run(tensor(Noise()))) for _ in range(2))
    for rank, again in zip(one.ranks, other.ranks, strict=True):
        assert (rank.operations == again.operations).all()


def test_a_fault_that_never_acts_changes_nothing() -> None:
    plan = tensor(Noise())
    clean = run(plan)
    fault = SlowGpu(0.5, When(2.0, 3.0), ranks=(3,))
    assert run(plan, [fault], clean).wall_ns == clean.wall_ns


def test_a_slow_gpu_costs_what_it_computes_longer() -> None:
    plan = ddp()
    clean = run(plan)
    slow = run(plan, [SlowGpu(0.05, ranks=(5,))], clean)
    # A step computes for 0.31 + 0.62 + 0.06 s, and all wait for the slow one once.
    assert step_s(slow) - step_s(clean) == pytest.approx(0.05 * 0.99, rel=0.05)


def test_a_late_host_costs_what_it_is_late() -> None:
    plan = ddp()
    clean = run(plan)
    late = run(plan, [LateHost(0.1, ranks=(2,), spread=0.0)], clean)
    assert step_s(late) - step_s(clean) == pytest.approx(0.1, rel=0.03)


def test_half_of_the_time_costs_half() -> None:
    plan = ddp()
    clean = run(plan)
    slow = run(plan, [SlowGpu(0.05, When(0.5, 1.0), ranks=(5,))], clean)
    always = run(plan, [SlowGpu(0.05, ranks=(5,))], clean)
    assert share(slow, clean) == pytest.approx(share(always, clean) / 2, rel=0.1)


def test_mates_of_a_slow_gpu_wait_in_its_tensor_group() -> None:
    plan = tensor()
    job = to_job(plan, run(plan, [SlowGpu(0.1, ranks=(5,))]))

    def waited_ms(rank: int) -> float:
        rows = job.ranks[rank].operations
        name = [one.name for one in job.ranks[rank].comms].index("tp")
        mine = rows[rows["comm"] == name]
        return float(np.median(mine["end_ns"] - mine["begin_ns"])) / MS

    assert waited_ms(4) > waited_ms(5) + 1
    assert waited_ms(1) == pytest.approx(waited_ms(5), rel=0.05)  # in another group


def test_a_slow_adapter_is_in_its_rail_alone() -> None:
    plan = tensor()
    times = transfer_times(run(plan, [SlowNic(1.0, nodes=(1,), nic=2)]))
    of_data = sorted(one for (_, _, size), (one, _) in times.items() if size == 29)
    assert len(of_data) == 4
    assert of_data[3] > 1.9 * of_data[0]
    assert of_data[2] == pytest.approx(of_data[0], rel=0.01)


def test_random_numbers_do_not_depend_on_faults() -> None:
    plan = ddp(Noise(), steps=20)
    clean = run(plan)
    slow = run(plan, [SlowGpu(0.3, ranks=(5,))], clean)
    for key, takes in clean.world.transfers.items():
        for (_, one), (_, other) in zip(takes, slow.world.transfers[key], strict=True):
            assert one == pytest.approx(other, rel=0.002)


def test_hosts_run_ahead_of_their_gpus() -> None:
    job = to_job(ddp(), run(ddp()))
    rows = job.ranks[0].operations[200]
    assert rows["begin_ns"] - rows["call_ns"] > 100 * MS


def check_shapes(job: Job) -> None:
    for rank in job.ranks:
        rows = rank.operations
        begun, ended = rows["begin_ns"] != NEVER, rows["end_ns"] != NEVER
        assert (np.diff(rows["call_ns"]) >= 0).all()
        assert (rows["begin_ns"][begun] >= rows["call_ns"][begun]).all()
        assert not (ended & ~begun).any()
        assert (rows["end_ns"][ended] > rows["begin_ns"][ended]).all()
        assert (rows["comm"] < len(rank.comms)).all()
        assert rank.end_ns <= job.wall_ns


def test_each_send_has_its_receive() -> None:
    program = Pipeline(MACHINE, step_s=1.0, stages=2, tp=2, batches=4)
    plan = Plan(MACHINE, lambda: program, 1, steps=6, phases=PLAIN)
    job = to_job(plan, run(plan))
    check_shapes(job)
    bytes_by_pair: dict[tuple[int, int, int], dict[str, int]] = {}
    for rank in job.ranks:
        for row in rank.operations[rank.operations["peer"] >= 0]:
            comm, func = rank.comms[row["comm"]], FUNCS[row["func"]]
            pair = (comm.rank, int(row["peer"]))
            key = (comm.id, *(pair if func == "Send" else pair[::-1]))
            moved = bytes_by_pair.setdefault(key, {"Send": 0, "Recv": 0})
            moved[func] += int(row["bytes"])
    assert len(bytes_by_pair) == 8
    assert all(moved["Send"] == moved["Recv"] > 0 for moved in bytes_by_pair.values())


def test_a_stage_does_as_many_backwards_as_forwards() -> None:
    for stages, batches in ((2, 4), (4, 8), (4, 2)):
        for stage in range(stages):
            kinds = [kind for kind, _, _ in one_forward_one_backward(stages, stage, batches)]
            assert kinds.count("forward") == kinds.count("backward") == batches


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 2), (4, 3)])
def test_interleaved_stages_fit_together(stages: int, chunks: int) -> None:
    machine = Machine(nodes=2, gpus=stages, nics=stages)
    program = Pipeline(machine, step_s=1.0, stages=stages, tp=1, chunks=chunks, layers=chunks,
                       batches=2 * stages)  # fmt: skip
    plan = Plan(machine, lambda: program, 1, steps=4, phases=PLAIN)
    check_shapes(to_job(plan, run(plan)))


def test_all_wait_for_a_rank_that_stops() -> None:
    plan = tensor(Noise())
    job = to_job(plan, run(plan, ending=StopsCalling(ranks=(5,))))
    check_shapes(job)
    open_ops = [int((one.operations["end_ns"] == NEVER).sum()) for one in job.ranks]
    assert open_ops[5] == 0
    assert all(one > 0 for rank, one in enumerate(open_ops) if rank != 5)
    assert len(job.ranks[5].operations) < min(
        len(one.operations) for one in job.ranks if one.procid != 5
    )


def test_what_a_dead_rank_was_in_never_ends() -> None:
    plan = ddp(Noise())
    job = to_job(plan, run(plan, ending=Dies(rank=5)))
    check_shapes(job)
    died_ns = job.ranks[5].end_ns
    for rank in job.ranks:
        ends = rank.operations["end_ns"]
        assert ends.max() <= died_ns
        assert (ends == NEVER).any()


def test_pauses_of_one_rank_delay_all() -> None:
    world = World(MACHINE, QUIET, 1)
    program = Ddp(MACHINE, step_s=0.1)
    program.setup(world)
    world.begin_step(0)
    world.pause(2, np.array([3]), np.array([1.0 * S]))
    program.step(world, 1.0)
    assert (world.host > 1.0 * S).all()


@pytest.mark.parametrize(
    "name",
    [
        "host-phases-few",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("healthy-2-ranks", "gpu-3-ranks", "hang-dies")
        ),
    ],
)
def test_a_case_is_the_same_each_time(name: str) -> None:
    (job, true), (again, same) = make(name, 3), make(name, 3)
    check_shapes(job)
    assert true == same
    assert (job.ranks[1].operations == again.ranks[1].operations).all()


def test_faults_cost_what_they_aim_at() -> None:
    _, true = make("gpu-3-ranks", 2)
    assert 0.025 < true.cost_share < 0.12
    assert ("rank", "rank 1") in true.guilty or ("rank", "rank 2") in true.guilty


def test_names_of_cases_are_their_own() -> None:
    assert len({one.name for one in CASES}) == len(CASES)


def test_steps_are_those_of_the_plan() -> None:
    plan = replace(ddp(steps=0), wall_s=120.0)
    assert run(plan).wall_ns / S == pytest.approx(120, rel=0.15)


def solver(program: Program, noise: Noise = QUIET, steps: int = 12) -> Plan:
    return Plan(MACHINE, lambda: replace(program), 1, steps=steps, noise=noise, phases=PLAIN)


def operations(plan: Plan, faults: Sequence[Fault] = ()) -> list[NDArray[np.void]]:
    """The operations of each rank."""
    return [one.operations for one in to_job(plan, run(plan, faults)).ranks]


def test_a_small_broadcast_lets_those_before_the_late_one_go() -> None:
    def ends(nbytes: int) -> Floats:
        program = Phased(MACHINE, kinds=("world",), operations=(("Broadcast", nbytes),))
        rows = operations(solver(program), [LateHost(0.05, ranks=(5,), spread=0.0)])
        return np.array([one["end_ns"][4] - rows[5]["begin_ns"][4] for one in rows])

    small, large = ends(MB), ends(1024 * MB)
    assert (small[:5] < -40 * MS).all()
    assert (small[5:] > 0).all()
    assert (large > 0).all()


def test_who_meets_outside_nccl_leaves_no_trace_in_it() -> None:
    program = Phased(MACHINE, kinds=("node",), operations=(("AllReduce", MB),), meets=EACH_PHASE)
    rows = operations(solver(program), [LateHost(0.05, ranks=(5,), spread=0.0)])
    begins = np.array([one["begin_ns"][6] for one in rows])
    # The node of the first ranks has nobody that is late, and waits for the other outside.
    assert np.ptp(begins[:5]) < MS
    assert begins[5] - begins[0] == pytest.approx(50 * MS, rel=0.02)
    gaps = [float(one["begin_ns"][6] - one["end_ns"][5]) for one in (rows[0], rows[6])]
    assert gaps[0] - gaps[1] == pytest.approx(50 * MS, rel=0.02)


def test_neighbours_of_a_late_rank_wait_for_it_and_nobody_else_does() -> None:
    program = Halo(MACHINE, step_s=0.1, norm_every=100)
    rows = operations(solver(program), [LateHost(0.05, ranks=(3,), spread=0.0)])
    took = [one["end_ns"] - one["begin_ns"] for one in rows]
    sends = FUNCS.index("Send")
    # All make the communicator together in the first step.
    second = [t[one["func"] == sends][2:4].max() for t, one in zip(took, rows, strict=True)]
    assert [rank for rank, ns in enumerate(second) if ns > 30 * MS] == [2, 4]
