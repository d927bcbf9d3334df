# SPDX-License-Identifier: Apache-2.0
"""Every finding that a report can have, once: its id, what it is about, what it means, what to do.

Code that makes a `Finding` takes its id from here, and the verdict selects findings by these
entries. `packaging/doc/findings.md` and the ids in the JSON Schema are made from them. `analysis/`,
`report/` and `store/` decide whether there is such a finding. A meaning says what is decided there,
and nothing more.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nccl_inspector.model.card import CRITICAL, INFO, WARNING, RuleId, Severity


class About(StrEnum):
    """What a finding is about; the texts are headings of the page of findings."""

    HANG = "An operation that does not end"
    ENDING = "How processes ended"
    SLOWNESS = "What cost the job time"
    HARDWARE = "What links and GPUs counted"
    WRITTEN = "What NCCL and PyTorch wrote"
    DATA = "What was not measured"
    FLIGHT = "What PyTorch's flight recorder says"
    PROBE = "What a probe of the allocation measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of finding.

    `severity` is the usual one; `otherwise` says when it is another one. `meaning` is what the
    finding says and what it does not say. If the report always tells the reader to do the same
    thing, `action` is the text that it prints; otherwise it sums up what the report can print.
    """

    id: RuleId  # does not change between releases
    about: About
    severity: Severity
    summary: str
    meaning: str
    action: str = ""
    otherwise: str = ""


# Operations that do not end: one rule for each word of HANG_VERDICTS (model/card.py).

_PERHAPS: Final = (
    "warning, with `perhaps hung` in its title, if the operation might have ended had the job "
    "gone on"
)

HANG_DEAD: Final = Rule(
    id=RuleId("hang-dead"),
    about=About.HANG,
    severity=CRITICAL,
    summary="A rank died, and the operation waits for it.",
    meaning="The rank gave no sign of life for more than 15 s, and for more than half of the time "
    "for which others waited for it. The finding also says how the other processes ended, and does "
    "not say why it died.",
    action="look for an error, a signal or the OOM killer on its node",
)
HANG_DIVERGENT: Final = Rule(
    id=RuleId("hang-divergent"),
    about=About.HANG,
    severity=CRITICAL,
    summary="A rank never called the operation in which others wait.",
    meaning="The rank still gave signs of life, and nothing that was measured holds it up. The "
    "finding says what the rank called last and when, if that is known. It does not say what the "
    "rank did instead. If most other ranks are in no operation either, the finding names nobody: "
    "the waiting ranks may have called one operation more than all others, for example because "
    "they had more batches.",
    action="look at what this rank did instead: its stack, its log, its input",
    otherwise=_PERHAPS,
)
HANG_BLOCKED: Final = Rule(
    id=RuleId("hang-blocked"),
    about=About.HANG,
    severity=CRITICAL,
    summary="A rank called the operation, but its GPU has not started it.",
    meaning="The call waits in the queue of the rank's GPU. What it waits for was not measured. "
    "If the finding names no rank, the missing ranks wait elsewhere, and what holds them up is "
    "not known.",
    action="look at what its GPU was busy with: a kernel, a copy, an XID",
    otherwise=_PERHAPS,
)
HANG_MISMATCHED: Final = Rule(
    id=RuleId("hang-mismatched"),
    about=About.HANG,
    severity=CRITICAL,
    summary="Ranks called different operations at the same place of one communicator.",
    meaning="The function or the size differs, or the ranks are in different operations of one "
    "communicator and wait for each other. Such an operation cannot end. The program is at fault, "
    "not a node.",
    action="look for a branch of the program that not all ranks take",
)
HANG_DEADLOCK: Final = Rule(
    id=RuleId("hang-deadlock"),
    about=About.HANG,
    severity=CRITICAL,
    summary="Ranks wait for each other in a circle.",
    meaning="Each of the ranks is in an operation that another of them has to join first: they "
    "use communicators, or Sends and Recvs, in different orders. Such operations cannot end. The "
    "program is at fault, not a node.",
    action="look for communicators that ranks use in different orders",
)
HANG_NETWORK: Final = Rule(
    id=RuleId("hang-network"),
    about=About.HANG,
    severity=CRITICAL,
    summary="All ranks called the operation, and it stopped on the network.",
    meaning="Network detail (`net=on`, or `auto`) says which rank's proxy waits for the network "
    "or for the receiver, and for which peer. It does not say whether a port, a cable or a switch "
    "is at fault.",
    action="check ports, cables and switches between them",
    otherwise=_PERHAPS,
)
HANG_TRANSPORT: Final = Rule(
    id=RuleId("hang-transport"),
    about=About.HANG,
    severity=CRITICAL,
    summary="All ranks called the operation, and it does not end.",
    meaning="Nothing that was measured shows that they wait for the network. Without network "
    "detail (`net=on`, or `auto`) nothing shows where the operation stopped. The confidence is "
    "always low.",
    action="look for XIDs and for NVLink or port errors on these nodes; with network detail "
    "(net=on) the report would say where the network stopped",
    otherwise=_PERHAPS,
)
HANG_NOT_MEASURED: Final = Rule(
    id=RuleId("hang-dead-or-not-measured"),
    about=About.HANG,
    severity=CRITICAL,
    summary="A rank that was not measured may not have called the operation.",
    meaning="All ranks whose calls are known have called it. Other ranks of the communicator have "
    "no data, or were not measured for a time, so it is not known whether they called it. The "
    "confidence is always low.",
    action="look in Slurm's log and in the node's log for what became of them",
    otherwise=_PERHAPS,
)
STOPPED_FIRST: Final = Rule(
    id=RuleId("stopped-first"),
    about=About.HANG,
    severity=CRITICAL,
    summary="A rank crashed: the job failed just when all others waited for this rank.",
    meaning="A process of the job failed, and the others were in an operation that this rank had "
    "not called, over all communicators. They had waited for 4 s or longer, and for longer than "
    "ever before in that communicator; or nearly all of them waited when they were ended. The "
    "finding says what the rank called last. The exit code says what happened to it only if it is "
    "the highest of the step, which srun returns. If they had waited for less than 4 s, the "
    "confidence is low.",
    action="look at what this rank wrote last, and for an error, a signal or the OOM killer on "
    "its node",
)
HANG_OUTSIDE: Final = Rule(
    id=RuleId("hang-outside"),
    about=About.HANG,
    severity=WARNING,
    summary="No rank was in an operation for a long time before the job was ended.",
    meaning="All measured ranks lived and none waited in an operation, for 5 min or more and for "
    "ten times as long as ever before in this job. So they were stuck outside of NCCL, or in the "
    "setup of a communicator, or they did something that takes longer than all that they did "
    "before. It accuses nobody. A job that ended by itself, or whose operations were not all seen, "
    "never has this finding. One-sided operations are never seen.",
    action="look at what the ranks did then: their stacks, the job's output, and with "
    "nccl-inspector logs whether a communicator was being set up",
)

# How processes ended.

KILLED: Final = Rule(
    id=RuleId("killed"),
    about=About.ENDING,
    severity=CRITICAL,
    summary="Processes were killed, or ended without finalizing NCCL.",
    meaning="If the finding is critical, a process died first: Slurm saw its task end before any "
    "other, by a signal or an error of its own, or it was silent for more than 15 s before the "
    "last process ended (60 s if Slurm or a time limit ended the job, or if it is not known what "
    "did). A process that waited for another one did not die first, whenever it ended: it gave up. "
    "If the finding is not critical, it says how far apart the processes ended. It does not say "
    "why they were killed. After a node failure it says of no process that it died first, and "
    "never of one whose GPUs a later process of the job went on with.",
    action="look for an error, a signal or the OOM killer at that time",
    otherwise="warning if only some processes were killed, or if nothing is known of the job's "
    "end and a process ended 35 s before the others; information if Slurm ended the job, if all "
    "processes were killed, or if later ones replaced them",
)
NODE_FAILED: Final = Rule(
    id=RuleId("node-failed"),
    about=About.ENDING,
    severity=CRITICAL,
    summary="A node of the job failed, so Slurm ended the job.",
    meaning="Slurm's state of the job is NODE_FAIL. The node is Slurm's FailedNode. Slurm 22.05 "
    "does not name one; then it is the only node without data, or the only one of which slurmstepd "
    "recorded no end of a task. What its processes measured is whole up to the last event that is "
    "there.",
    action="look in slurmctld's log and in the node's own for why it failed; the job is not to "
    "blame",
)

# What cost the job time.

_BY_COST: Final = (
    "critical if it cost 50 % of the job's time or more, information if it cost less than the "
    "setting `report_cost` (1 %)"
)
_NO_RECORDS: Final = "information if there are no exact records"
_NO_RECORDS_MEANING: Final = (
    "The report has this finding only if there are no exact records. It comes from time lines, "
    "and accuses nobody."
)

STRAGGLER: Final = Rule(
    id=RuleId("straggler"),
    about=About.SLOWNESS,
    severity=WARNING,
    summary="A rank, or all ranks of a set, are late to operations, and the others wait.",
    meaning="The time between the rank's operations is longer than that of its peers at the same "
    "place of the program. The cost is what a replay of the job with the rank at its peers' pace "
    "saves. Ranks that are late together are one finding, about the smallest set that explains the "
    "cost: all of some nodes, of a communicator, of what several communicators connect (a "
    "replica), or at one place of all communicators of a kind (a rail). To be late need not be a "
    "fault: the rank may have more work. The finding says whether its host or its GPU was late, if "
    "that is known.",
    action="if the host was late, check the CPUs of the node; if the GPU was late, check its "
    "clocks, power, temperature and PCIe width; if neither is known, compare the rank's input and "
    "host with the others'",
    otherwise=f"{_BY_COST}; also information if rank 0 is late seldom and for long, if a rank or a "
    "node stands still once for less than a minute, if a rank is late only in the job's first "
    "steps, and if there are too few records",
)
UNEVEN_WORK: Final = Rule(
    id=RuleId("uneven-work"),
    about=About.SLOWNESS,
    severity=INFO,
    summary="Some ranks have more to compute than others, and the others wait.",
    meaning="In a mixture of experts, ranks whose experts get more tokens compute longer between "
    "the two exchanges of a layer, and are as fast as the others in the rest of it. A slow GPU "
    "would be slow everywhere, and a late host late anywhere. So it is the work that is uneven, "
    "and nobody is accused. A stage of a pipeline that always computes longer than the other "
    "stages is told in the same way: it may have more layers. The cost is what the job would save "
    "if these ranks took as long as the others.",
    action="look at how the program divides its work: layers of the stages, balance and placement "
    "of the experts, capacity factor",
)
SLOW_NETWORK: Final = Rule(
    id=RuleId("slow-network"),
    about=About.SLOWNESS,
    severity=WARNING,
    summary="Transfers between nodes are slow.",
    meaning="Transfers take longer than on other paths of their kind or at other times of this "
    "job, or all of them reach much less than the ports can carry. These times do not include "
    "waiting for late ranks. `from` or `to` a node: only that direction is slow. It is often not "
    "known which end of a path is slow. Without exact records the finding names paths of any "
    "transport that look slow, and accuses nobody.",
    action="check ports, cables and switches of the named paths; if all transfers are slow, check "
    "NCCL's settings, adapters, PCIe and GPUDirect RDMA",
    otherwise=f"{_BY_COST}; {_NO_RECORDS}",
)
SLOW_LINKS: Final = Rule(
    id=RuleId("slow-links"),
    about=About.SLOWNESS,
    severity=WARNING,
    summary="Transfers within nodes (NVLink, PCIe) are slow.",
    meaning="Transfers take longer than on other paths of their kind or at other times of this "
    "job, or all of them reach much less than the links can carry. These times do not include "
    "waiting for late ranks.",
    action="check NVLinks, PCIe width and XIDs of this node; if all transfers are slow, check "
    "NCCL's settings, adapters, PCIe and GPUDirect RDMA",
    otherwise=_BY_COST,
)
SLOW_OUTSIDE: Final = Rule(
    id=RuleId("slow-outside-communication"),
    about=About.SLOWNESS,
    severity=WARNING,
    summary="All ranks were slower between their operations for some time, or stood still.",
    meaning="Transfers were as fast as ever, and nobody waited for one rank; or the job's own "
    "throughput fell, and no other cause explains it. It is not known what the job did instead. "
    "An evaluation, a checkpoint or another phase of the program can look the same.",
    action="look at data loading, storage, checkpoints and GPU clocks at that time",
    otherwise=f"{_BY_COST}; also information if it may be the program's own doing (the finding "
    "says why), and if there are no exact records",
)
SLOW_NVLINK: Final = Rule(
    id=RuleId("slow-nvlink"),
    about=About.SLOWNESS,
    severity=INFO,
    summary="Transfers inside one node were slower for some time.",
    meaning=_NO_RECORDS_MEANING,
    action="look at the GPUs and NVLinks of the node",
)
SLOW_STRAGGLER: Final = Rule(
    id=RuleId("slow-straggler"),
    about=About.SLOWNESS,
    severity=INFO,
    summary="Ranks waited more for late ranks for some time.",
    meaning=_NO_RECORDS_MEANING,
    action="look at what the late ranks did at that time: data, checkpoint, clocks",
)
SLOW_UNKNOWN: Final = Rule(
    id=RuleId("slow-unknown"),
    about=About.SLOWNESS,
    severity=INFO,
    summary="Something was slow for some time, and the cause is not known.",
    meaning=_NO_RECORDS_MEANING,
    action="compare with the node's counters and the fabric's records at that time",
)
SLOW_WORKLOAD: Final = Rule(
    id=RuleId("slow-workload-phase"),
    about=About.SLOWNESS,
    severity=INFO,
    summary="Bandwidth was lower while the program did something else.",
    meaning=f"The mix of operations was different at that time. {_NO_RECORDS_MEANING}",
)
SLOWER_THAN_SIMILAR: Final = Rule(
    id=RuleId("slower-than-similar"),
    about=About.SLOWNESS,
    severity=INFO,
    summary="A kind of operation is slower than in this user's similar jobs.",
    meaning="Its bus bandwidth is more than 10 % below the median of at least five jobs of this "
    "user with as many ranks and nodes and the same GPUs, network and NCCL. The difference is "
    "larger than these jobs differ by chance. A warning makes a healthy job DEGRADED. The finding "
    "does not say what made the operation slow.",
    action="run nccl-inspector compare with one of them, and nccl-inspector nodes for its nodes",
    otherwise="warning if this holds for half or more of the time of the operations that could be "
    "compared",
)

# What links and GPUs counted. Which counter means what from which rate on: analysis/hardware.

_COUNTS: Final = (
    "Counters belong to the node, so other jobs on it count too. The finding alone does not say "
    "that the job was slower because of it."
)
_BESIDE: Final = (
    "critical if a single event means that hardware failed; information if nothing that the "
    "counter explains was slow. If something was, the counter is evidence of that finding "
    "instead. It stays a warning only in the report of a job that NVIDIA's plugin measured"
)

HARDWARE_PORT: Final = Rule(
    id=RuleId("hardware-port"),
    about=About.HARDWARE,
    severity=WARNING,
    summary="A network port counted errors, drops or congestion, or changed its state.",
    meaning="A counter of the port rose by more than in a healthy fabric, or stood out from "
    f"other ports; or the port's link, speed or firmware changed while the job ran. {_COUNTS}",
    action="do what the report says for the counter: check cable, connector and switch port; look "
    "for congestion or a slow receiver; or check whether the process got too little CPU time",
    otherwise=_BESIDE,
)
HARDWARE_GPU: Final = Rule(
    id=RuleId("hardware-gpu"),
    about=About.HARDWARE,
    severity=WARNING,
    summary="A GPU counted memory, NVLink or PCIe errors, was throttled, or changed its state.",
    meaning="A counter of the GPU rose by more than is usual, or stood out from the other GPUs; "
    "or the GPU went away, lost NVLinks, lost lanes or speed of its PCIe link, or has rows of "
    f"memory to remap. {_COUNTS}",
    action="do what the report says for the counter: check cooling, power supply and power limits; "
    "check NVLinks; reseat or replace the GPU or its riser; or drain the node and reset the GPU",
    otherwise=_BESIDE,
)
HARDWARE_NVLINK: Final = Rule(
    id=RuleId("hardware-nvlink"),
    about=About.HARDWARE,
    severity=WARNING,
    summary="One NVLink of a GPU counted errors.",
    meaning=f"A counter of the link rose by more than is usual. {_COUNTS}",
    action="check both ends of the GPU's NVLinks, and reset the GPU if the errors go on",
    otherwise=_BESIDE,
)
HARDWARE_XID: Final = Rule(
    id=RuleId("hardware-xid"),
    about=About.HARDWARE,
    severity=WARNING,
    summary="The kernel log of a node has an XID of a GPU.",
    meaning="The NVIDIA driver reported an error of this GPU while the job ran. Some XIDs are "
    "faults of an application (13, 31, 43) or follow another error (45, 137); these are "
    "information. Others are critical, such as memory errors that were not corrected, or a GPU "
    "that fell off the bus.",
    action="do what the report says for this XID; if the report does not know it, look it up in "
    "NVIDIA's catalogue",
    otherwise="critical or information, depending on the XID; a warning is handled as for "
    "`hardware-gpu`",
)

# What NCCL and PyTorch wrote: one rule for all errors, and one for all settings, of
# nccl_log/catalogue.tsv.

_WRITTEN: Final = (
    "It comes from lines that the job's user could have written, too. So it never changes the "
    "verdict and accuses no node. `nccl-inspector logs FILE` says more."
)
_BY_VERDICT: Final = "information if the measurements show that the job was healthy"
_BY_RECORD: Final = ", or if Slurm's record of the job contradicts it"

NCCL_ERROR: Final = Rule(
    id=RuleId("nccl-error"),
    about=About.WRITTEN,
    severity=WARNING,
    summary="NCCL, PyTorch, the program or a launcher wrote of an error.",
    meaning="The finding quotes the first error, as far as times or the order of lines tell which "
    "one that is, says how many other processes followed, and lists what else was written: NCCL's "
    "warnings, the last traceback of each rank, kills for lack of memory, a time limit. It says "
    f"whether the measurements name the same rank. {_WRITTEN}",
    action='do what the report says for the error; the page "NCCL\'s own log" lists them all',
    otherwise=_BY_VERDICT + _BY_RECORD,
)
LAUNCHER: Final = Rule(
    id=RuleId("launcher-ends"),
    about=About.WRITTEN,
    severity=INFO,
    summary="srun, torchrun or mpirun wrote how tasks ended.",
    meaning="The finding lists, in the order of the lines of the job's output, which task or rank "
    "ended with which code or signal, what that means, and whether it was Slurm or torchrun that "
    "ended it; of a table of torchrun's the root cause comes first. A process of which the boxes "
    "say that it died is told with these words in its own finding. The finding accuses nobody: "
    "users can write such lines, and a task that ended first need not have failed first. srun "
    "itself returns the highest of all, also of tasks that it killed.",
    action="look at what the task that is told first wrote last",
)
NCCL_SETTING: Final = Rule(
    id=RuleId("nccl-setting"),
    about=About.WRITTEN,
    severity=WARNING,
    summary="NCCL runs in a way that is likely to be slow.",
    meaning="NCCL fell back to TCP or to the host's memory, does not use GPUDirect RDMA, is set up "
    f"differently on different ranks, or was told to avoid a fast path. {_WRITTEN}",
    action='do what the report says for the setting; the page "NCCL\'s own log" lists them all',
    otherwise=_BY_VERDICT,
)

# What was not measured.

NOT_MEASURED: Final = Rule(
    id=RuleId("not-measured"),
    about=About.DATA,
    severity=WARNING,
    summary="Data of some ranks or nodes are missing.",
    meaning="Nodes of the job have no summary, or fewer ranks were measured than the job has. It "
    "is not known what these did, so the culprit may be among them.",
    action="run nccl-inspector doctor there; while such a job runs, nccl-inspector doctor --job "
    "JOBID on its nodes says why processes are not measured",
)
DROPPED: Final = Rule(
    id=RuleId("dropped"),
    about=About.DATA,
    severity=INFO,
    summary="Some events were not measured.",
    meaning="The plugin counted these events by the reason why it did not measure them, and the "
    "finding lists the reasons. What was measured is still valid.",
    otherwise="warning from 1 % of all operations on",
)
NO_TIMES: Final = Rule(
    id=RuleId("no-times"),
    about=About.DATA,
    severity=WARNING,
    summary="Processes were not measured, or were counted without times, because of their NCCL.",
    meaning="The site's list `deny_nccl` has this NCCL, or it is RCCL, or it gives no times. "
    "These processes are compared with no others.",
)
SILENT: Final = Rule(
    id=RuleId("silent"),
    about=About.DATA,
    severity=INFO,
    summary="Processes were not measured for a time, or only in part.",
    meaning="The site's kill switch was on, or only a part of the operations was timed, to keep "
    "the cost of measuring low. Ranks that counted other operations than their peers are not "
    "compared with them.",
)

# What PyTorch's flight recorder says, joined over the ranks (`nccl-inspector flight`).

_FLIGHT = (
    "The finding comes from the dumps alone. A dump says what a rank called, in which process "
    "group and with which number. "
)

_IN_REPORT: Final = (
    "in the report of a job a warning, or information if the job was measured to be healthy; there "
    "it names nobody, and does not change the verdict"
)

FLIGHT_NO_DUMP: Final = Rule(
    id=RuleId("flight-no-dump"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="A rank left no dump, and others wait in an operation that it has to join.",
    meaning=f"{_FLIGHT}A process that died, or that was killed before it could write, leaves none. "
    "So this rank is the first suspect; the finding does not say what became of it.",
    action="look for an error, a signal or the OOM killer on the rank's node, and for its dump in "
    "another directory",
    otherwise=f"warning if no operation waits for the rank; {_IN_REPORT}",
)
FLIGHT_NOT_CALLED: Final = Rule(
    id=RuleId("flight-not-called"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="A rank did not call the operation in which others wait.",
    meaning=f"{_FLIGHT}This rank wrote a dump, so its process lived, and it was in no other "
    "recorded operation. The finding says what the rank called last, and where in the program. If "
    "most ranks are in no operation, the finding names nobody: the waiting ranks may have called "
    "one operation too many.",
    action="look at what this rank did after its last call: its stack, its log, its input",
    otherwise=_IN_REPORT,
)
FLIGHT_MISMATCHED: Final = Rule(
    id=RuleId("flight-mismatched"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="Ranks called different operations at the same place of a process group.",
    meaning=f"{_FLIGHT}The operation, its data type or its number of elements differs from what "
    "most ranks called. If there is no majority, the finding names all. The program is at fault, "
    "not a node.",
    action="compare the two places in the program, and the sizes of their tensors",
    otherwise=_IN_REPORT,
)
FLIGHT_DEADLOCK: Final = Rule(
    id=RuleId("flight-deadlock"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="Ranks wait for each other in a circle.",
    meaning=f"{_FLIGHT}Each of these ranks is in an operation that another of them has not called, "
    "because it waits in another one. The program is at fault, not a node.",
    action="make all ranks use their process groups, Sends and Recvs in the same order",
    otherwise=_IN_REPORT,
)
FLIGHT_NOT_STARTED: Final = Rule(
    id=RuleId("flight-not-started"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="A rank called the operation, but its GPU has not started it.",
    meaning=f"{_FLIGHT}The GPUs of other ranks have started the operation. What this GPU is busy "
    "with was not recorded. Gloo's dumps never say this.",
    action="look at what its GPU was busy with: a kernel, a copy, an XID",
    otherwise=_IN_REPORT,
)
FLIGHT_NOT_ENDED: Final = Rule(
    id=RuleId("flight-not-ended"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="All ranks called the operation, and it does not end.",
    meaning=f"{_FLIGHT}They do not say where data got stuck, so the cause is a GPU, a link or the "
    "network, or the operation is only slow.",
    action="look for XIDs, NVLink and port errors on the ranks' nodes, and at the job's report",
    otherwise=_IN_REPORT,
)
FLIGHT_NOT_KNOWN: Final = Rule(
    id=RuleId("flight-not-known"),
    about=About.FLIGHT,
    severity=CRITICAL,
    summary="An operation does not end, and it is not known who did not come to it.",
    meaning=f"{_FLIGHT}Here a dump could not be read, its older records were overwritten, or the "
    "members of the group are not in the dumps (so with Gloo, except for the group of all ranks).",
    action="set TORCH_FR_BUFFER_SIZE to a larger number, so that older calls are kept",
    otherwise=_IN_REPORT,
)
FLIGHT_UNREADABLE: Final = Rule(
    id=RuleId("flight-unreadable"),
    about=About.FLIGHT,
    severity=WARNING,
    summary="A dump cannot be read.",
    meaning="The file ends early, is too large, is no dump of a flight recorder, or has something "
    "in it that would run code. Nothing in it was executed. The rank is treated as one of which "
    "nothing is known.",
    action="look at who wrote the file; a dump that was cut is usual if the job was killed while "
    "it wrote",
)

# What `nccl-inspector probe` measured, or read from nccl-tests.

PROBE_BELOW: Final = Rule(
    id=RuleId("probe-below"),
    about=About.PROBE,
    severity=WARNING,
    summary="The bus bandwidth is below what was expected.",
    meaning="The highest bus bandwidth over all sizes is below the threshold, a share of the "
    "expected value (90 % by default). The expected value was given, or is the median of earlier "
    "probes with as many ranks and nodes and the same GPUs. The finding does not say why; other "
    "jobs on the same network can slow a probe, too.",
    action="probe again, with --pairs to find the node or pair that is slow",
)
PROBE_SLOW_NODE: Final = Rule(
    id=RuleId("probe-slow-node"),
    about=About.PROBE,
    severity=WARNING,
    summary="A node sends to the others, or receives from them, more slowly than they do among "
    "themselves.",
    meaning="At least three quarters of the node's pairs are slow in one direction, by 10 % or "
    "more, and by more than the spread of the other nodes' pairs explains. With fewer than four "
    "nodes nobody is named. Slow pairs were measured twice and the better figure counts. Whether "
    "the node's port, its cable or its host's settings are at fault was not measured.",
    action="compare its ports, links and settings with those of the other nodes (nccl-inspector "
    "doctor, ethtool, ibstat)",
)
PROBE_SLOW_PAIR: Final = Rule(
    id=RuleId("probe-slow-pair"),
    about=About.PROBE,
    severity=WARNING,
    summary="Two nodes are slow with each other, and not with the rest.",
    meaning="The pair is slower than the median of all other pairs by 10 % or more, and by more "
    "than their spread explains. Slow pairs were measured twice and the better figure counts. So "
    "the path between them is the suspect, not either node: a switch, or a link between switches.",
    action="look at the path between these two nodes: switches, links between them, routing",
)
PROBE_WRONG: Final = Rule(
    id=RuleId("probe-wrong"),
    about=About.PROBE,
    severity=CRITICAL,
    summary="Data arrived that were not those sent.",
    meaning="The probe compares what each rank received with what it should have received, once "
    "for each size; nccl-tests counts wrong elements and values out of bounds. A GPU, its memory, "
    "a link or a library is at fault. The finding does not say which.",
    action="take the nodes out of use until the cause is known; look for XIDs and ECC errors",
)
PROBE_FAILED: Final = Rule(
    id=RuleId("probe-failed"),
    about=About.PROBE,
    severity=WARNING,
    summary="nccl-tests ended with an error of NCCL or CUDA.",
    meaning="The finding quotes what the program wrote. Behind the slash is the last warning of "
    "NCCL. What it means is said if NCCL's own log has a rule for it.",
    action="run it again with NCCL_DEBUG=INFO and give its output to nccl-inspector logs",
)

# In the order of this file; taken from the module itself, so that no entry is left out.
RULES: Final = tuple(one for one in list(globals().values()) if isinstance(one, Rule))
BY_ID: Final = {one.id: one for one in RULES}


SEVERITY_WORDS: Final = {CRITICAL: "critical", WARNING: "warning", INFO: "information"}


def ids_about(about: About) -> frozenset[RuleId]:
    """Return the ids of all rules about one thing."""
    return frozenset(one.id for one in RULES if one.about is about)


def severity_words(rule: Rule) -> str:
    """Return how severe a finding is, with when it is otherwise: `critical`, `warning; ...`."""
    words = SEVERITY_WORDS[rule.severity]
    return f"{words}; {rule.otherwise}" if rule.otherwise else words
