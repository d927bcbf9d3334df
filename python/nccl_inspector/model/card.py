# SPDX-License-Identifier: Apache-2.0
"""The report card as data. Its fields are the keys of `report --json` (render/json.py).

Times are Unix seconds, durations `_ns` or `_s`, bandwidths `_gbs` are GB/s of 1e9 bytes, shares and
deltas are fractions of one. None means not known or not defined; no number is made up.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NewType

from nccl_inspector.model.card_hosts import HostTimes
from nccl_inspector.model.card_labels import Labels
from nccl_inspector.model.card_network import Network

SCHEMA_VERSION = "1.0.0"

HEALTHY, DEGRADED, HUNG, FAILED = "HEALTHY", "DEGRADED", "HUNG", "FAILED"
# CRASHED: it failed, and it is known which process did. PERHAPS HUNG: what its ranks waited for
# might have come, had the job gone on.
CRASHED, PERHAPS_HUNG = "CRASHED", "PERHAPS HUNG"
NO_DATA, CANNOT_TELL = "NO DATA", "CANNOT TELL"
STATUSES = HEALTHY, DEGRADED, HUNG, PERHAPS_HUNG, CRASHED, FAILED, NO_DATA, CANNOT_TELL

# What a DEGRADED or FAILED job suffered from.
NETWORK, NVLINK, STRAGGLER, OUTSIDE = "network", "nvlink", "straggler", "outside communication"
COMMUNICATION, OTHER, UNKNOWN = "communication", "other", "unknown"
HOST, GPU = "host", "gpu"  # what makes a straggler late, if it is known
CAUSES = NETWORK, NVLINK, STRAGGLER, OUTSIDE, COMMUNICATION, OTHER, UNKNOWN


class Severity(StrEnum):
    """How bad a finding is, from the least to the worst."""

    INFO = "I"
    WARNING = "W"
    CRITICAL = "C"


INFO: Final = Severity.INFO
WARNING: Final = Severity.WARNING
CRITICAL: Final = Severity.CRITICAL
SEVERITIES = tuple(Severity)
# The id of a kind of finding. Only model/rules.py makes ids, so that each has its entry there.
RuleId = NewType("RuleId", str)

# high: two independent sources agree; medium: one strong source; low: inference.
HIGH, MEDIUM, LOW = "high", "medium", "low"
CONFIDENCES = HIGH, MEDIUM, LOW

# Why an operation never ended. DIVERGENT: some ranks never called it. BLOCKED: the missing ranks
# called it but did not start it, or wait in another communicator. TRANSPORT: all ranks are in it.
# STOPPED: the missing ranks stopped, and the job failed then.
DIVERGENT, MISMATCHED, BLOCKED, TRANSPORT = "divergent", "mismatched", "blocked", "transport"
DEAD, NOT_MEASURED, DEADLOCK = "dead", "dead or not measured", "deadlock"
STOPPED = "stopped first"
HANG_VERDICTS = (
    DIVERGENT, MISMATCHED, BLOCKED, NETWORK, TRANSPORT, DEAD, NOT_MEASURED, DEADLOCK, STOPPED,
)  # fmt: skip

EXIT_HEALTHY, EXIT_WARNING, EXIT_CRITICAL, EXIT_NO_DATA = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Period:
    """A period of time."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Entity:
    """The rank, device or other thing that a finding is about.

    `kind` is one of rank, node, gpu, port, pair, communicator, job. `kind` and `name` identify it;
    the other fields say where to find it, as far as that is known.
    """

    kind: str
    name: str
    node: str = ""
    gpu: str = ""  # as `nvidia-smi` and the counters number it: `GPU7`
    gpu_uuid: str = ""
    pci_bus_id: str = ""
    pid: int | None = None
    procid: int | None = None  # SLURM_PROCID
    port: str = ""  # of a network adapter: `mlx5_4/1`


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure that supports a finding.

    `source`: boxes, counters, throughput, slurm, baseline, prometheus or json. `reference` is what
    the value is compared with, in the same unit.
    """

    source: str
    metric: str
    value: float
    unit: str
    reference: float | None = None
    count: int | None = None  # how many things (as `metric` says) `value` comes from


@dataclass(frozen=True, slots=True)
class Finding:
    """What happened, to whom, since when, why, and what to do.

    `cost_s` is the job's wall time that it cost, `cost_share` the share of all the job's time.
    `entities` are the cause; `victims` are those that only waited for them.
    """

    rule: RuleId  # of model/rules.py; a card of another release may have an unknown one
    severity: Severity
    confidence: str
    title: str  # one line: what and who
    detail: str  # the figures as text
    period: Period | None = None
    entities: tuple[Entity, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    actions: tuple[str, ...] = ()
    cost_s: float | None = None
    cost_share: float | None = None
    cause: str = ""  # of CAUSES; empty: the rule implies it
    victims: tuple[Entity, ...] = ()
    next: str = ""  # the command to run next
    # For model/headline.py: `who` cost the job so much: `how`. Empty: the title says it.
    who: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The overall verdict; `cost_s` is lost wall time of the job, `cost_share` its share."""

    status: str
    cause: str  # of CAUSES; empty when healthy or without data
    confidence: str
    summary: str
    cost_s: float | None = None
    cost_share: float | None = None
    waiting_share: float | None = None  # of the ranks' time in collectives


@dataclass(frozen=True, slots=True)
class Component:
    """A component of a heterogeneous job; `nodes_missing` are its nodes that have no summary."""

    job_id: int
    nodelist: str
    nodes_missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step of the job ended that did not end well, by Slurm's accounting.

    `step`: 0, batch, extern or interactive; `state`: Slurm's word; `exit_code`: code and signal, as
    `0:9`; `words`: what they mean. Slurm's code of a step leaves out the tasks that Slurm killed.
    """

    step: str
    state: str
    exit_code: str
    words: str


@dataclass(frozen=True, slots=True)
class Job:
    """What Slurm and the hooks say about the job; unknown texts are empty and unknown numbers None.

    `attempts` are the restarts that have summaries; `restart` is the one that is shown.
    """

    job_id: int
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    cluster: str = ""
    state: str = ""  # Slurm's word, such as COMPLETED
    exit_code: str = ""  # `0:15`: code and signal
    start_s: float | None = None
    end_s: float | None = None
    num_nodes: int | None = None
    nodelist: str = ""
    array_task: str = ""  # `810_3`
    het_components: tuple[int, ...] = ()
    restart: int = 0
    attempts: tuple[int, ...] = ()
    steps: int = 0
    submit_line: str = ""
    switches_asked: str = ""  # `1@10:00`: --switches
    segment_asked: int | None = None  # --segment
    switches_used: tuple[str, ...] = ()  # leaf switches or blocks that its nodes are in
    components: tuple[Component, ...] = ()  # those of het_components
    uid: int | None = None
    script: str = ""  # fingerprint of user and submit line: equal for the same script
    step_ends: tuple[StepEnd, ...] = ()  # the steps that did not end well, if Slurm told them
    by_slurm: bool = True  # False: job_id is the process id of `nccl-inspector run`; 0: not known

    @property
    def wall_s(self) -> float | None:
        """How long the job ran, in seconds; None: not known."""
        if self.start_s is None or self.end_s is None:
            return None
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Environment:
    """The software and hardware that the job ran with."""

    nccl: tuple[str, ...] = ()  # versions, as `2.30.7`
    plugin_versions: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()
    gpus: int = 0
    ports: tuple[str, ...] = ()  # kinds of network ports with their count, as `8 x 400 Gb/s IB`


@dataclass(frozen=True, slots=True)
class Input:
    """A source of data; `state` is present, partial or absent, `detail` says more as text."""

    source: str
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not measured, or not as usual; `kind` of `names`: process or node."""

    words: str
    kind: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataQuality:
    """Which data the card is made from, and what is missing."""

    ranks_expected: int | None
    ranks_seen: int
    nodes_missing: tuple[str, ...]
    killed: tuple[str, ...]  # processes that died without finalizing, as text
    dropped: dict[str, int]  # events that were not measured, by reason
    refused: dict[str, int]  # records that could not be read, by reason
    timing: str  # gpu, cpu, mixed or none
    inputs: tuple[Input, ...]
    missing: tuple[str, ...]  # what else is missing or invalid, as text
    gaps: tuple[Gap, ...] = ()
    counters_nodes: int | None = None  # nodes whose links and GPUs were sampled; None: not known


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, from the data of all its ranks.

    `transport` is one of nvlink, host, net, mixed and unknown.
    """

    id: str  # hexadecimal, `0x5e1f`
    name: str
    transport: str
    nranks: int
    nnodes: int
    nodes: tuple[str, ...]
    ranks_seen: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operations:
    """One kind of operation of one communicator, over all its ranks."""

    communicator: str  # its id
    func: str
    size_class: int  # floor(log2(bytes))
    algo_proto: str
    count: int  # of the busiest rank
    time_ns: float  # T, the time without waiting; of Sends and Recvs without T, the median
    bus_gbs: float | None
    waiting_share: float | None
    waiting_included: bool = False  # `time_ns` is not T: the ranks' times could not be told apart
    expected_gbs: float | None = None
    expected_source: str = ""
    baseline_delta: float | None = None
    notes: tuple[str, ...] = ()
    waited_for: str = ""  # the process, as text; empty: no process stands out
    waited_for_node: str = ""
    time_error_ns: float | None = None  # standard error of `time_ns`


@dataclass(frozen=True, slots=True)
class Transport:
    """One transport class; the times are those of its busiest rank.

    `busy_s` is the sum over its operations, which overlap if the rank uses several streams.
    `wall_share` is a share of the job's time and at most 1; if operations overlap, it is an upper
    bound.
    """

    transport: str
    busy_s: float
    wall_share: float | None
    waiting_share: float | None
    bus_gbs: float | None
    baseline_delta: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the time line: the bus bandwidth by T in each window, None without operations."""

    transport: str
    communicator: str
    func: str
    size_class: int
    bus_gbs: tuple[float | None, ...]
    operations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Degradation:
    """A period in which something was slow.

    `depth` is the change from the baseline: -0.28 is 28 % less. `kind`: transport, straggler or
    both. For a straggler, the bandwidths are those of the typical rank, waiting included. `cost_s`
    is an upper bound: the wall time that the most affected process lost, including what the
    application hid behind computing.
    """

    period: Period
    transport: str
    communicator: str
    func: str
    size_class: int
    depth: float
    baseline_gbs: float
    bus_gbs: float
    explained_share: float | None = None  # of the dip in progress, where known
    kind: str = "transport"
    communicators: tuple[str, ...] = ()  # ids of all that were slow then
    cost_s: float | None = None
    cost_share: float | None = None  # of the job's wall time

    @property
    def waited_longer(self) -> bool:
        """Ranks only waited longer: T, which time lines have, is as usual."""
        return self.kind == "straggler"


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput that the job itself reported, in the same windows."""

    unit: str
    source: str  # stdout, mark
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Windows of one length; `too_short`: there are fewer than the detector needs."""

    window_s: int = 0
    start_s: int = 0
    windows: int = 0
    series: tuple[Series, ...] = ()
    throughput: Throughput | None = None
    degradations: tuple[Degradation, ...] = ()
    too_short: bool = False


@dataclass(frozen=True, slots=True)
class Straggler:
    """A process that its peers waited for; `kind` is host, gpu or unknown."""

    rank: str  # as text: `rank 17`
    node: str
    gpu: str
    late_ns: float  # median
    z: float | None
    windows_share: float | None  # of those with enough operations
    waited_ns: float  # by all peers together
    kind: str
    communicators: tuple[str, ...]  # ids in which it is named
    flagged: bool  # True: it meets all rules; False: it is only the slowest
    member_of: int = 0  # communicators that it is in and that have figures; 0: not known
    confidence: str = LOW  # of CONFIDENCES
    windows: int = 0  # with enough operations; 0: there was no time line
    period: Period | None = None  # from the first window in which it was late to the last
    queued_ns: float | None = None  # from call to begin of its late operations (median), if known
    peers_queued_ns: float | None = None  # the same of its peers
    queue_looks: int = 0  # late operations whose calls are known


@dataclass(frozen=True, slots=True)
class LastCall:
    """The last operation that a process called, or the one that it is in.

    `since_s` is Unix time: the process called nothing after it. `func` is empty if it is not known.
    """

    process: str
    communicator: str
    op_index: int
    func: str
    since_s: float | None


@dataclass(frozen=True, slots=True)
class Hang:
    """An operation in which some processes wait and which others never joined.

    The tuples of texts are names of processes.
    """

    communicator: str
    op_index: int
    func: str
    since_s: float | None
    age_s: float
    verdict: str  # of HANG_VERDICTS
    waiting: tuple[str, ...] = ()
    never_issued: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()  # gone, stopped, or without a sign of life
    roots: tuple[str, ...] = ()  # who holds up all others, over all communicators; empty: not known
    not_measured: tuple[str, ...] = ()  # not known whether these called it
    confirmed: bool = True  # False: it might have ended, had the job gone on
    last: tuple[LastCall, ...] = ()  # of the roots
    behind: tuple[str, ...] = ()  # in other operations, and wait for nobody but the roots


@dataclass(frozen=True, slots=True)
class Counter:
    """What a link or a GPU counted while the job ran, if that is noteworthy."""

    node: str
    device: str
    kind: str
    name: str
    delta: float
    unit: str
    severity: Severity
    words: str


@dataclass(frozen=True, slots=True)
class BaselineMetric:
    """A figure of this job compared with that of similar jobs."""

    name: str
    value: float
    unit: str
    median: float
    mad: float
    z: float | None


@dataclass(frozen=True, slots=True)
class OthersMetric:
    """A figure of this job compared with other users' jobs; it never changes a verdict.

    `median` is the median of the users' own medians: each user counts once, however many jobs they
    ran.
    """

    name: str
    value: float
    unit: str
    median: float
    users: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Baseline:
    """Similar jobs of the same user; `differs` are fields of the key that were allowed to differ.

    `others`: similar jobs of at least five other users, as information.
    """

    jobs: int
    differs: tuple[str, ...]
    metrics: tuple[BaselineMetric, ...]
    others_jobs: int = 0
    others_users: int = 0
    others: tuple[OthersMetric, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """The whole report."""

    job: Job
    verdict: Verdict
    environment: Environment
    data_quality: DataQuality
    findings: tuple[Finding, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    operations: tuple[Operations, ...] = ()
    transports: tuple[Transport, ...] = ()
    timeline: TimeLine = field(default_factory=TimeLine)
    stragglers: tuple[Straggler, ...] = ()
    hangs: tuple[Hang, ...] = ()
    counters: tuple[Counter, ...] = ()
    baseline: Baseline | None = None
    heat: tuple[
        tuple[str, tuple[float | None, ...]], ...
    ] = ()  # process as text, lateness in ns per window
    network: Network | None = None  # None: no network detail was taken
    hosts: HostTimes | None = None  # None: the host's time in NCCL was not measured
    labels: Labels | None = None  # None: NCCL told no tag, symmetric kernel or root

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 warnings, 2 critical, 3 not enough data: as bad as verdict and findings.

        A job that failed, hung or crashed never has 0, and 3 means that nobody is named.
        """
        status = self.verdict.status
        if status in (HUNG, CRASHED) or any(one.severity == CRITICAL for one in self.findings):
            return EXIT_CRITICAL
        if status in (NO_DATA, CANNOT_TELL):
            return EXIT_NO_DATA
        warned = any(one.severity == WARNING for one in self.findings)
        return EXIT_WARNING if warned or status in (FAILED, PERHAPS_HUNG) else EXIT_HEALTHY
