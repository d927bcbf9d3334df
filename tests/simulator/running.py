# SPDX-License-Identifier: Apache-2.0
"""A plan of a job, run with its faults and without, and made into what the player plays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.simulator.endings import Ending
from tests.simulator.engine import Noise, World
from tests.simulator.faults import Fault
from tests.simulator.job import FUNCS, NEVER, OPERATIONS, Clock, Comm, Job, Rank
from tests.simulator.machine import MS, Floats, Ints, Machine, S
from tests.simulator.programs import Program

START_UNIX_S = 1_785_679_200
OPERATIONS_MAX = 50_000  # of a rank


@dataclass(frozen=True)
class Phases:
    """What happens besides steps. `settle` makes steps of the times between; 0: never."""

    warm_up: float = 3.0  # how many times longer the first step takes
    compile_s: float = 0.0  # before it, about
    evaluate_every_s: float = 0.0
    evaluate_steps: int = 8
    save_every_s: float = 0.0
    save_s: float = 6.0
    save_all: bool = False  # else rank 0 alone, and the others wait
    log_every: int = 10  # steps
    log_ms: float = 1.0  # of rank 0
    grow: float = 0.0  # the sequence's length grows so much over the job, in three jumps
    idle_every_s: float = 0.0
    idle_s: float = 0.0
    step_s: float = 1.0  # of `settle`

    def due(self, every_s: float, step: int) -> bool:
        """Tell whether what is done at these intervals comes after this step."""
        every = max(2, round(every_s / self.step_s))
        return every_s > 0 and step % every == every - 1


@dataclass(frozen=True)
class Plan:
    """A job to be run. `program` makes it anew for each run."""

    machine: Machine
    program: Callable[[], Program]
    seed: int
    wall_s: float = 1500.0
    steps: int = 0  # 0: as many as fit into the wall time
    noise: Noise = field(default_factory=Noise)
    phases: Phases = field(default_factory=Phases)
    first_rank: int = 0
    first_node: int = 0

    @property
    def start_unix_s(self) -> int:
        """Return when it starts."""
        return START_UNIX_S + 60 * (self.seed % 10_000)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the names of its nodes."""
        return tuple(f"n{self.first_node + at + 1:02}" for at in range(self.machine.nodes))


@dataclass
class Run:
    """What came of it."""

    world: World
    program: Program
    begins: Floats  # of the steps
    wall_ns: float
    killed: Floats | None = None  # when each rank was, if so
    slurm_end_ns: float = 0.0  # as in Job
    stuck_ns: float = 0.0  # when the last thing happened in a job that hangs
    state: str = "COMPLETED"  # Slurm's word
    states: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # of each process, as wait(2) tells them


def _scale(phases: Phases, step: int, steps: int) -> float:
    grown = 1 + phases.grow * min(3, 4 * step // max(1, steps)) / 3
    if step == 0:
        return grown * phases.warm_up
    return grown * (1.25 if step < 3 else 1.0)


def _around(world: World, program: Program, phases: Phases, step: int) -> None:
    """Do what comes after some steps: logs, evaluation, checkpoints, idle times."""
    chance = np.random.default_rng((world.seed, 9, step))
    if phases.log_every and step % phases.log_every == 0:
        world.host[0] += phases.log_ms * MS * np.exp(0.3 * chance.standard_normal())
    if phases.due(phases.evaluate_every_s, step):
        for _ in range(phases.evaluate_steps):
            program.step(world, 1.0, forward_only=True)
        world.collective(program.everybody(), "AllReduce", 64)
        world.sync()
    if phases.due(phases.save_every_s, step):
        world.sync()
        took = phases.save_s * S * np.exp(0.25 * chance.standard_normal(world.n))
        if phases.save_all:
            world.wait_on_host(took)
        else:
            world.host[0] += took[0]
        world.barrier(program.everybody())
    if phases.due(phases.idle_every_s, step):
        world.wait_on_host(chance.exponential(phases.idle_s * S))


def settle(plan: Plan) -> Plan:
    """Return the plan with as many steps as fit into its wall time."""
    if plan.steps:
        return plan
    phases = plan.phases
    quiet = Phases(phases.warm_up, log_every=0)
    probed = run(replace(plan, steps=8, phases=quiet))
    calls = np.zeros(plan.machine.ranks)
    for row in probed.world.log:
        calls[row[0]] += 1
    step_s = float(np.median(np.diff(probed.begins[3:]))) / S * (1 + 0.5 * phases.grow)
    share = 1.0  # of the time that is for steps
    for every_s, takes_s in (
        (phases.save_every_s, phases.save_s),
        (phases.idle_every_s, phases.idle_s),
        (phases.evaluate_every_s, 0.4 * step_s * phases.evaluate_steps),
    ):
        share -= takes_s / every_s if every_s else 0.0
    most = OPERATIONS_MAX * 8 // int(calls.max())
    steps = int(np.clip((plan.wall_s - 25) * share / step_s, 12, most))
    return replace(plan, steps=steps, phases=replace(phases, step_s=step_s))


def run(
    plan: Plan, faults: Sequence[Fault] = (), clean: Run | None = None,
    ending: Ending | None = None,
) -> Run:  # fmt: skip
    """Run a plan. `clean`: the run without faults, whose weather it then has."""
    plan = settle(plan)
    steps = plan.steps
    world = World(plan.machine, plan.noise, plan.seed)
    program = plan.program()
    program.setup(world)
    chance = np.random.default_rng((plan.seed, 10))
    world.host += (6 + chance.exponential(1.5, world.n)) * S  # imports, the model
    world.compute_end[:] = world.host
    replica = program.replica_of()
    begins = np.zeros(steps)
    done = steps
    for step in range(steps):
        world.begin_step(step)
        begins[step] = world.step_begin
        same = clean is not None and step < len(clean.begins)
        world.clean_begin = float(clean.begins[step]) if clean and same else world.step_begin
        world.batch = _batches(plan, step, replica)
        for fault in faults:
            fault.begin_step(world, step / steps)
        if step == 0:
            world.wait_on_host(chance.exponential(0.8 * S, world.n))
            world.wait_on_host(plan.phases.compile_s * S * chance.uniform(0.6, 1.4, world.n))
        world.links.settle()
        if ending is not None:
            ending.begin_step(world, program, step, steps)
        program.step(world, _scale(plan.phases, step, steps))
        _around(world, program, plan.phases, step)
        if not np.isfinite(world.host).any():
            done = step + 1
            break
        if step % 4 == 3:
            _hold_back(world)
    return _finish(plan, world, program, begins[:done], ending)


def _batches(plan: Plan, step: int, replica: Ints) -> Floats:
    """Return how much larger than usual each rank's share of the batch is in a step."""
    chance = np.random.default_rng((plan.seed, 11, step))
    noise = plan.noise
    even = 1 + noise.batches * chance.uniform(-1, 1, len(replica))
    tailed = np.exp(noise.batch_tail * chance.standard_normal(len(replica)))
    found: Floats = (even * tailed)[replica]
    return found


def _hold_back(world: World) -> None:
    """Let no host be further ahead of its GPU than a queue of launches allows."""
    ahead = world.compute_end - 4 * S
    world.host = np.maximum(world.host, ahead)


def _finish(
    plan: Plan, world: World, program: Program, begins: Floats, ending: Ending | None
) -> Run:
    world.sync()
    done = Run(world, program, begins, np.inf, states=["finalized"] * world.n)
    if ending is not None:
        done.state = ending.state
        ending.finish(world, done)
        return done
    for group in reversed(world.groups):
        if group.used and group.destroyed.max() < 0:
            world.destroy(group)
    chance = np.random.default_rng((plan.seed, 12))
    world.host += chance.uniform(0.3, 1.5, world.n) * S
    done.wall_ns = float(world.host.max()) + 2 * S
    return done


def _rows(world: World) -> dict[int, np.ndarray[tuple[int], np.dtype[np.void]]]:
    """Return the operations of each rank, those that it called."""
    rows = [row for row in world.log if len(row[0])]
    lengths = np.array([len(row[0]) for row in rows])
    flat = {"rank": np.concatenate([row[0] for row in rows]).astype(np.float64)}
    for at, name in ((1, "comm"), (2, "func"), (3, "bytes")):
        flat[name] = np.repeat(np.array([row[at] for row in rows], dtype=np.float64), lengths)
    peers = [np.broadcast_to(row[5], len(row[0])) for row in rows]
    flat["peer"] = np.concatenate(peers).astype(np.float64)
    for at, name in ((6, "call"), (7, "begin"), (8, "end")):
        flat[name] = np.concatenate([row[at] for row in rows])
    flat["group"] = np.zeros(len(flat["rank"]))
    starts = np.cumsum(lengths) - lengths
    for start, row in zip(starts.tolist(), rows, strict=True):
        if row[4] is not None:
            flat["group"][start : start + len(row[0])] = row[4]
    called = np.isfinite(flat["call"])
    flat = {name: column[called] for name, column in flat.items()}
    order = np.lexsort((flat["call"], flat["rank"]))
    place = _places(world)
    found = np.zeros(len(order), dtype=OPERATIONS)
    rank = flat["rank"][order].astype(np.intp)
    group = flat["comm"][order].astype(np.intp)
    found["comm"] = place[rank, group]
    found["func"], found["bytes"] = flat["func"][order], flat["bytes"][order]
    found["group"], found["peer"] = flat["group"][order], flat["peer"][order]
    found["channels"] = np.array([one.channels for one in world.groups])[group]
    for name in ("call", "begin", "end"):
        value = flat[name][order]
        whole = np.full(len(value), NEVER, dtype=np.int64)
        happened = np.isfinite(value)
        whole[happened] = np.rint(value[happened]).astype(np.int64)
        found[f"{name}_ns"] = whole
    cuts = np.searchsorted(rank, np.arange(world.n + 1))
    return {one: found[cuts[one] : cuts[one + 1]] for one in range(world.n)}


def _places(world: World) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return which of its communicators each group is, for each rank."""
    place = np.zeros((world.n, max(1, len(world.groups))), dtype=np.int64)
    count = np.zeros(world.n, dtype=np.int64)
    for group in world.groups:
        if group.used:
            ranks = group.members.ravel()
            place[ranks, group.number] = count[ranks]
            count[ranks] += 1
    return place


def _comms(world: World, nodes: Sequence[int]) -> list[list[Comm]]:
    found: list[list[Comm]] = [[] for _ in range(world.n)]
    for group in world.groups:
        if not group.used:
            continue
        for row, members in enumerate(group.members.tolist()):
            nnodes = len({nodes[rank] for rank in members})
            for place, rank in enumerate(members):
                gone = group.destroyed[rank]
                destroyed = int(gone) if gone >= 0 and np.isfinite(gone) else NEVER
                found[rank].append(
                    Comm(
                        group.ids[row], group.name, group.size, nnodes, place,
                        int(group.created[rank]), destroyed, *group.words,
                    )
                )  # fmt: skip
    return found


def to_job(plan: Plan, done: Run, clocks: dict[str, Clock] | None = None) -> Job:
    """Return the job as its ranks saw it."""
    world = done.world
    names = plan.node_names
    rows = _rows(world)
    comms = _comms(world, world.node.tolist())
    ranks = []
    for rank in range(world.n):
        end = world.host[rank] if done.killed is None else done.killed[rank]
        operations = rows[rank] if done.killed is None else _cut(rows[rank], int(end))
        ranks.append(
            Rank(
                plan.first_rank + rank, names[world.node[rank]], rank % plan.machine.gpus,
                tuple(comms[rank]), operations, int(end), done.states[rank],
                done.statuses[rank] if done.statuses else 0,
            )
        )  # fmt: skip
    return Job(
        tuple(ranks), plan.start_unix_s, int(done.wall_ns), names, clocks or {},
        state=done.state, slurm_end_ns=int(done.slurm_end_ns),
    )  # fmt: skip


def _cut(
    rows: np.ndarray[tuple[int], np.dtype[np.void]], end_ns: int
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return what there was of the operations when the process was gone."""
    rows = rows[rows["call_ns"] <= end_ns].copy()
    for name in ("begin_ns", "end_ns"):
        rows[name][rows[name] > end_ns] = NEVER
    return rows


def transfer_times(done: Run) -> dict[tuple[int, str, int], tuple[float, int]]:
    """Return the median ns of the transfers, and how many, by communicator, function, size."""
    found: dict[tuple[int, str, int], tuple[float, int]] = {}
    gathered: dict[tuple[int, int, int, int], list[float]] = {}
    for (number, func, size), takes in done.world.transfers.items():
        if FUNCS[func] not in ("AllReduce", "AllGather", "ReduceScatter") or not size:
            continue
        for rows, took in takes:
            for row, one in zip(rows.tolist(), took.tolist(), strict=True):
                key = number, row, func, size.bit_length() - 1
                gathered.setdefault(key, []).append(one)
    for (number, row, func, size_class), values in gathered.items():
        key3 = done.world.groups[number].ids[row], FUNCS[func], size_class
        found[key3] = float(np.median(values)), len(values)
    return found
