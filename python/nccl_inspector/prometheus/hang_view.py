# SPDX-License-Identifier: Apache-2.0
"""For whom the processes of a job wait, by the counts that a Prometheus has of them.

The process that all others wait for waits for nobody: it has nothing in flight. How many operations
were called is compared within each communicator, and a process is judged over all of its own. The
alert NcclJobHung asks the same in PromQL (monitoring/hang_parts.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nccl_inspector.live.troubles import age_words
from nccl_inspector.live.view import Trouble, TroubleKind
from nccl_inspector.prometheus.api import PromSample

# Counts are from the last write of a process, so a wait is older than they say by an interval or
# two (30 s each).
WAIT_S = 30.0

Place = tuple[str, str]  # node and GPU


@dataclass(frozen=True, slots=True)
class Absent:
    """A process that others wait for, and that calls nothing."""

    place: Place
    rank: str  # in the communicator
    comm: str  # its name
    waiting: int  # processes of the communicator that wait
    age_s: float  # for how long
    receiving: bool  # they wait in Sends or Recvs, so it is not sure that they wait for it

    def trouble(self) -> Trouble:
        """Return what is shown of the process."""
        many = "1 rank" if self.waiting == 1 else f"{self.waiting} ranks"
        have = "has" if self.waiting == 1 else "have"
        age, where = age_words(self.age_s), f"{self.comm} (in which it is rank {self.rank})"
        if self.receiving:
            words = f"has nothing in flight, while {many} of {where} {have} waited {age}"
            return Trouble(TroubleKind.ABSENT, self.age_s, f"{words} in Sends or Recvs")
        words = f"did not come to what {many} of {where} {have} waited {age} in"
        return Trouble(TroubleKind.ABSENT, self.age_s, f"{words}, and has nothing in flight")


@dataclass
class _Seats:
    """One communicator."""

    name: str
    ranks: dict[Place, str] = field(default_factory=dict)
    called: dict[Place, float] = field(default_factory=dict)
    waits_s: dict[bool, dict[Place, float]] = field(
        default_factory=lambda: {False: {}, True: {}}
    )  # by whether it is a Send or Recv
    shared: set[Place] = field(default_factory=set)  # GPUs of several of its ranks

    def fewer(self, place: Place) -> bool:
        return self.called.get(place, 0.0) < max(self.called.values(), default=0.0)


def _place(labels: Mapping[str, str]) -> Place:
    return labels.get("node", ""), labels.get("gpu", "")


def find_absent(
    flights: Iterable[PromSample], called: Iterable[PromSample], mixed: Iterable[PromSample]
) -> list[Absent]:
    """Return for whom the processes of one job wait, who is waited for longest first.

    The samples are the answers of LiveQuestions about the job. Nobody is named if more processes
    did not come than came, or if processes share a GPU and cannot be told apart.
    """
    comms: dict[str, _Seats] = {}
    for sample in called:
        own, place = sample.labels, _place(sample.labels)
        seats = comms.setdefault(own.get("comm", ""), _Seats(own.get("comm_name", "")))
        if place in seats.ranks:
            seats.shared.add(place)
        seats.ranks[place], seats.called[place] = own.get("rank", ""), sample.value
    oldest: dict[Place, float] = defaultdict(float)
    for sample in flights:
        own, place = sample.labels, _place(sample.labels)
        oldest[place] = max(oldest[place], sample.value)
        if sample.value > WAIT_S and own.get("comm", "") in comms:
            is_p2p = own.get("__name__", "").startswith("nccl_p2p")
            comms[own["comm"]].waits_s[is_p2p][place] = sample.value
    shared = {place for seats in comms.values() for place in seats.shared}
    idle = {place for place, age_s in oldest.items() if not age_s} - shared
    uneven = {sample.labels.get("comm", "") for sample in mixed}
    return _named(comms, idle, uneven, receiving=False) or _named(
        comms, idle, uneven, receiving=True
    )


def _named(
    comms: Mapping[str, _Seats], idle: Iterable[Place], uneven: Iterable[str], *, receiving: bool
) -> list[Absent]:
    found: dict[Place, Absent] = {}
    waiting: set[Place] = set()
    for comm, seats in comms.items():
        waits_s = seats.waits_s[receiving]
        waiting |= waits_s.keys()
        for place in seats.ranks.keys() & set(idle) if waits_s else ():
            age_s = max(waits_s.values())
            # Where there are Sends and Recvs, ranks rightly call different numbers.
            if not (receiving or comm in uneven or seats.fewer(place)):
                continue
            if place not in found or found[place].age_s < age_s:
                found[place] = Absent(
                    place, seats.ranks[place], seats.name, len(waits_s), age_s, receiving
                )
    if len(found) > len(waiting):
        return []
    return sorted(found.values(), key=lambda one: (-one.age_s, one.place))
