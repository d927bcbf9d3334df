# SPDX-License-Identifier: Apache-2.0
"""Cases in which a job does not end by itself: hangs, deaths, and who is behind them."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulator import plans, truth
from tests.simulator.case import (
    NOBODY,
    SHORT,
    Case,
    Make,
    Planner,
    a_node,
    a_rank,
    of_size,
    who_is,
)
from tests.simulator.endings import (
    Deadlock,
    Dies,
    Ending,
    Lost,
    Mismatched,
    StopsCalling,
)
from tests.simulator.hardware import Event
from tests.simulator.job import Clock
from tests.simulator.machine import S
from tests.simulator.making import Scenario
from tests.simulator.plans import Chance, Sizes
from tests.simulator.running import Plan, Run

_DEAD = frozenset({truth.CRASHED})


def hang(
    planner: Planner, ending: Callable[[Chance, int], Ending], count: int = 1,
    statuses: frozenset[str] = frozenset({truth.HUNG}), offset_s: float = 0.0,
) -> Make:  # fmt: skip
    """Return jobs that hang because of some ranks."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        first = a_rank(chance, plan)
        ranks = sorted({first, *(int(one) for one in chance.choice(plan.machine.ranks, count - 1))})
        guilty, related = NOBODY, NOBODY
        for rank in ranks:
            mine, near = who_is(plan, rank)
            guilty, related = guilty | mine, related | near
        made = ending(chance, first)
        if isinstance(made, Deadlock):
            made = replace(made, ranks=tuple(ranks))
        clocks = {}
        if offset_s:
            clocks[plan.node_names[a_node(chance, plan)]] = Clock(int(offset_s * 1e9))
        return Scenario(plan, (), 0.0, frozenset(), statuses, guilty, related,
                        ending=lambda _: made, clocks=clocks)  # fmt: skip

    return scenario


def lost_path(chance: Chance, seed: int) -> Scenario:
    """Return a job in which all wait in one collective, of which no rank is the cause."""
    plan = replicas(chance, seed)
    ending = Lost(_place(chance), float(chance.uniform(500, 1500)))
    return Scenario(plan, statuses=frozenset({truth.HUNG}), nameable=False,
                    ending=lambda _: ending)  # fmt: skip


def all_stop(chance: Chance, seed: int) -> Scenario:
    """Return a job all of whose ranks stop calling in front of the same operation."""
    plan = of_size(plans.tensor_data, **SHORT)(chance, seed)
    state = "TIMEOUT" if chance.random() < 0.5 else "CANCELLED"
    ranks = tuple(range(plan.machine.ranks))
    ending = StopsCalling(_place(chance), float(chance.uniform(500, 1500)), state, ranks=ranks)
    return Scenario(plan, statuses=frozenset({truth.CANNOT_TELL}), nameable=False,
                    ending=lambda _: ending)  # fmt: skip


def lost_gpu(chance: Chance, seed: int) -> Scenario:
    """Return a job whose GPU falls off its bus: its process dies, and the kernel says XID 79."""
    made = hang(of_size(plans.tensor_data, **SHORT), dies, statuses=_DEAD)(chance, seed)
    assert made.ending is not None
    ending = made.ending(None)  # type: ignore[arg-type]  # it does not look at the run
    assert isinstance(ending, Dies)
    node, local = divmod(ending.rank, made.plan.machine.gpus)

    def events(done: Run) -> tuple[Event, ...]:
        died_s = float(done.world.death[ending.rank]) / S
        return (Event(node, "xid", f"GPU{local}", "xid", 79, died_s),)

    made.counted_when, made.counters = events, True
    return made


def _place(chance: Chance) -> float:
    return float(chance.uniform(0.2, 0.9))


def stops(chance: Chance, rank: int) -> Ending:
    """Let a rank call nothing any more."""
    aborts = bool(chance.random() < 0.3)
    return StopsCalling(
        _place(chance), float(chance.uniform(500, 1500)), "FAILED" if aborts else "CANCELLED",
        aborts, ranks=(rank,), item=int(chance.integers(2, 16)),
    )  # fmt: skip


def dies(chance: Chance, rank: int) -> Ending:
    """Let a rank be killed."""
    return Dies(_place(chance), float(chance.uniform(5, 90)), "FAILED", rank=rank)


def stops_briefly(chance: Chance, rank: int) -> Ending:
    """Let a rank call nothing any more, until the others' watchdog gives up after 5 s to 2 min."""
    return StopsCalling(
        _place(chance), float(chance.uniform(5, 120)), "FAILED", ranks=(rank,),
        item=int(chance.integers(2, 16)),
    )  # fmt: skip


def gives_up_slowly(chance: Chance, rank: int) -> Ending:
    """Let a rank call nothing any more; the others give up one by one, over up to 15 minutes."""
    return StopsCalling(
        _place(chance), float(chance.uniform(30, 600)), "FAILED", aborts=True, ranks=(rank,),
        item=int(chance.integers(2, 16)), spread_s=float(chance.uniform(10, 900)),
    )  # fmt: skip


def dies_at_once(chance: Chance, rank: int) -> Ending:
    """Let a rank be killed, and srun end the others at once."""
    return Dies(_place(chance), float(chance.uniform(0.2, 2.0)), "FAILED", rank=rank)


def mismatches(chance: Chance, rank: int) -> Ending:
    """Let a rank call something else than the others."""
    return Mismatched(_place(chance), float(chance.uniform(500, 1500)), rank=rank)


def deadlocks(chance: Chance, rank: int) -> Ending:
    """Let two ranks call in another order."""
    return Deadlock(_place(chance), float(chance.uniform(500, 1500)), ranks=(rank,))


def replicas(chance: Chance, seed: int) -> Plan:
    """Return a training that sums its gradients at the end of a step, over replicas."""
    found = plans.tensor_data(chance, seed, Sizes(wall_s=(500.0, 1200.0)))
    program = replace(found.program(), overlap=False, distributed=False)  # type: ignore[call-arg]
    return replace(found, program=lambda: replace(program))


HANGS = (
    Case("hang-ddp", "hang", hang(of_size(plans.ddp, **SHORT), stops), "a rank stops", True),
    Case("hang-tp-dp", "hang", hang(of_size(plans.tensor_data, **SHORT), stops), "a rank stops"),
    Case("hang-pp", "hang", hang(of_size(plans.pipeline, **SHORT), stops), "a rank stops"),
    Case("hang-fsdp", "hang", hang(of_size(plans.fsdp, **SHORT), stops), "a rank stops"),
    Case("hang-clock-30s", "hang", hang(replicas, stops, offset_s=30.0),
         "a rank stops, and a clock is 30 s off"),
    Case("hang-dies", "hang", hang(of_size(plans.ddp, **SHORT), dies, statuses=_DEAD),
         "a process is killed", True),
    Case("hang-dies-tp-dp", "hang", hang(of_size(plans.tensor_data, **SHORT), dies, 1, _DEAD),
         "a process is killed"),
    Case("hang-brief-ddp", "hang", hang(of_size(plans.ddp, **SHORT), stops_briefly),
         "a rank stops, and the others give up soon", True),
    Case("hang-brief-pp", "hang", hang(of_size(plans.pipeline, **SHORT), stops_briefly),
         "a rank stops, and the others give up soon"),
    Case("hang-crash-ddp", "hang", hang(of_size(plans.ddp, **SHORT), dies_at_once, 1, _DEAD),
         "a rank dies, and srun ends the others", True),
    Case("hang-crash-fsdp", "hang", hang(of_size(plans.fsdp, **SHORT), dies_at_once, 1, _DEAD),
         "a rank dies, and srun ends the others"),
    Case("hang-crash-pp", "hang", hang(of_size(plans.pipeline, **SHORT), dies_at_once, 1, _DEAD),
         "a rank dies, and srun ends the others"),
    Case("hang-experts", "hang", hang(of_size(plans.experts, **SHORT), stops_briefly),
         "a rank of experts stops, and the others give up soon"),
    Case("hang-ring", "hang", hang(of_size(plans.ring_attention, **SHORT), stops_briefly),
         "a rank of a ring stops, and the others give up soon"),
    Case("hang-slow-end", "hang", hang(of_size(plans.hsdp, **SHORT), gives_up_slowly),
         "a rank stops, and the others give up over up to 15 min"),
    Case("hang-256", "hang", hang(of_size(plans.tensor_data, nodes=(32,), **SHORT), stops_briefly),
         "one of 128 or 256 ranks stops, and the others give up soon"),
    Case("hang-crash-experts", "hang",
         hang(of_size(plans.experts, **SHORT), dies_at_once, 1, _DEAD),
         "a rank of experts dies, and srun ends the others"),
    Case("hang-crash-ring", "hang",
         hang(of_size(plans.ring_attention, **SHORT), dies_at_once, 1, _DEAD),
         "a rank of a ring dies, and srun ends the others"),
    Case("hang-mismatch", "hang", hang(replicas, mismatches), "a rank calls something else"),
    Case("hang-deadlock", "hang", hang(replicas, deadlocks, 2), "two ranks call in another order"),
    Case("hang-network", "hang", lost_path, "a transfer never ends"),
    Case("hang-outside", "hang", all_stop, "all ranks stop in front of the same operation"),
    Case("hang-xid", "hang", lost_gpu, "a GPU falls off its bus"),
)  # fmt: skip
