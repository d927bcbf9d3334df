"""Hand-made report cards: what the outputs are tested with, and drawn for the docs."""

import random
from dataclasses import replace
from functools import cache

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    COMMUNICATION,
    CRITICAL,
    DEGRADED,
    FAILED,
    HEALTHY,
    HIGH,
    HUNG,
    INFO,
    LOW,
    MEDIUM,
    NETWORK,
    NO_DATA,
    STRAGGLER,
    UNKNOWN,
    WARNING,
    Baseline,
    BaselineMetric,
    Card,
    Communicator,
    Component,
    Counter,
    DataQuality,
    Degradation,
    Entity,
    Environment,
    Evidence,
    Finding,
    Gap,
    Hang,
    Input,
    Job,
    Operations,
    Period,
    Series,
    Straggler,
    Throughput,
    TimeLine,
    Transport,
    Verdict,
)
from nccl_inspector.model.card_hosts import HostTime, HostTimes
from nccl_inspector.model.card_network import SEND, Network, NetworkPeer, QueuePair

START_S = 1785679200  # 2026-08-02 14:00:00 UTC
WINDOW_S = 10
WINDOWS = 804
DIP = Period(START_S + 2410, START_S + 2790)
NASTY = "\x1b[31m<script>alert(1)</script>\r\n\t\x00\x9b‮\ud800\"'&{{7777*3}}"

_JOB = Job(
    48213,
    name="gpt-pretrain",
    user="amy",
    account="phys",
    partition="gpu",
    cluster="c1",
    state="COMPLETED",
    exit_code="0:0",
    start_s=START_S,
    end_s=START_S + WINDOWS * WINDOW_S,
    num_nodes=4,
    nodelist="n[11-14]",
    attempts=(0,),
    steps=1,
    submit_line="sbatch --switches=1@10:00 train.sh",
    switches_asked="1@10:00",
    switches_used=("leaf1", "leaf2"),
)
_ENVIRONMENT = Environment(
    ("2.30.7",), ("0.6.0",), ("NVIDIA H100 80GB HBM3",), 32, ("32 x 400 Gb/s InfiniBand",)
)
_QUALITY = DataQuality(
    32,
    32,
    (),
    (),
    {},
    {},
    "gpu",
    (
        Input("boxes", "present"),
        Input("counters", "present"),
        Input("throughput", "present", "314 lines of the job's stdout"),
        Input("baseline", "present"),
    ),
    (),
    counters_nodes=4,
)
_COMMUNICATORS = (
    Communicator(
        "0x5e1f90aa31b2c477", "default_pg", "mixed", 32, 4, ("n11", "n12", "n13", "n14"), 32
    ),
    Communicator("0x91c0000000000001", "tp0", "nvlink", 8, 1, ("n11",), 8),
    Communicator("0x07aa000000000001", "dp_emb0", "net", 4, 4, ("n11", "n12", "n13", "n14"), 4),
)
_WORLD, _TP, _DP = (one.id for one in _COMMUNICATORS)
_OPERATIONS = (
    Operations(
        _WORLD, "ReduceScatter", 27, "RING_SIMPLE", 41_212, 12.1e6, 338.0, 0.11,
        expected_gbs=367.0, expected_source="H100, 8 x 400 Gb/s", baseline_delta=-0.02,
    ),
    Operations(
        _WORLD, "AllGather", 27, "RING_SIMPLE", 41_212, 12.0e6, 341.0, 0.10,
        expected_gbs=367.0, expected_source="H100, 8 x 400 Gb/s", baseline_delta=-0.01,
    ),
    Operations(_TP, "AllReduce", 25, "NVLS_SIMPLE", 330_104, 0.14e6, 398.0, 0.04,
               expected_gbs=475.0, expected_source="H100, NVLS", baseline_delta=0.004),
    Operations(_DP, "AllReduce", 22, "TREE_LL128", 10_301, 0.31e6, 20.0, 0.18,
               baseline_delta=-0.03),
    Operations(_DP, "Send", 20, "", 2_000, 0.05e6, 21.0, None),
)  # fmt: skip
_TRANSPORTS = (
    Transport("mixed", 1761.0, 0.219, 0.11, 339.0, -0.02),
    Transport("nvlink", 46.2, 0.0057, 0.04, 398.0, 0.004),
    Transport("net", 3.3, 0.0004, 0.18, 20.0, -0.03),
)


def wave(
    middle: float, seed: int, depth: float = 0.0, noise: float = 0.01, gap: bool = False
) -> tuple[float | None, ...]:
    """A series with a dip in DIP; `gap`: nothing ended for a while."""
    chance = random.Random(seed)  # noqa: S311 - a picture, no secret
    first = int(DIP.start_s - START_S) // WINDOW_S
    last = int(DIP.end_s - START_S) // WINDOW_S
    return tuple(
        None
        if gap and 200 <= at < 230
        else middle * (1 + depth * (first <= at < last)) * chance.gauss(1, noise)
        for at in range(WINDOWS)
    )


def _series(kind: int, values: tuple[float | None, ...]) -> Series:
    one = _OPERATIONS[kind]
    transport = next(c.transport for c in _COMMUNICATORS if c.id == one.communicator)
    return Series(
        transport,
        one.communicator,
        one.func,
        one.size_class,
        values,
        tuple(0 if value is None else 51 for value in values),
    )


def _line(depth: float, throughput: Throughput | None = None) -> TimeLine:
    slow = (
        (
            Degradation(DIP, "mixed", _WORLD, "ReduceScatter", 27, depth, 338.0, 243.0, 0.99),
            Degradation(DIP, "mixed", _WORLD, "AllGather", 27, depth, 341.0, 246.0, 0.97),
        )
        if depth
        else ()
    )
    series = (
        _series(0, wave(338, 1, depth, gap=True)),
        _series(1, wave(341, 2, depth, gap=True)),
        _series(2, wave(398, 3, gap=True)),
        _series(3, wave(20, 4, noise=0.03, gap=True)),
    )
    return TimeLine(WINDOW_S, START_S, WINDOWS, series, throughput, slow)


def _heat(
    ranks: int, late: int, late_ns: float, windows: int = WINDOWS
) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    chance = random.Random(7)  # noqa: S311 - a picture, no secret
    return tuple(
        (
            f"rank {rank}",
            tuple(
                None
                if 200 <= at < 230
                else abs(chance.gauss(20e3, 15e3)) + (late_ns if rank == late else 0) * (at > 90)
                for at in range(windows)
            ),
        )
        for rank in range(ranks)
    )


@cache
def healthy() -> Card:
    """A job with nothing wrong."""
    return Card(
        _JOB,
        Verdict(
            HEALTHY, "", HIGH,
            "no slow time, no rank that the others waited for, no error of a link or GPU",
            0.0, 0.0, 0.06,
        ),
        _ENVIRONMENT,
        _QUALITY,
        (),
        _COMMUNICATORS,
        _OPERATIONS,
        _TRANSPORTS,
        _line(0.0),
        baseline=_BASELINE,
        heat=_heat(32, -1, 0),
    )  # fmt: skip


_BASELINE = Baseline(
    8,
    (),
    (
        BaselineMetric("mixed ReduceScatter 128-256MB", 338.0, "GB/s", 345.0, 4.1, -1.7),
        BaselineMetric("waiting", 0.10, "share", 0.06, 0.011, 3.6),
    ),
)


@cache
def network() -> Card:
    """A time of slow network, with a straggler beside it: the reference's example."""
    throughput = Throughput("TFLOP/s/GPU", "stdout", wave(314, 5, -0.08, 0.004))
    return replace(
        healthy(),
        verdict=Verdict(
            DEGRADED, NETWORK, HIGH,
            "6 min 20 s at -28% mixed bandwidth from 14:40:10 UTC on; n13 mlx5_4 is to blame",
            33.0, 0.004, 0.09,
        ),
        findings=(
            Finding(
                rules.SLOW_NETWORK.id, WARNING, HIGH,
                "network path slow: mixed ReduceScatter 338 -> 243 GB/s, NVLink alone -1%",
                "Throughput fell from 314 to 289 TFLOP/s/GPU in the same time; the bandwidth "
                "explains 99% of that.",
                DIP,
                (Entity("node", "n13"), Entity("port", "n13 mlx5_4")),
                (
                    Evidence("boxes", "mixed ReduceScatter bandwidth", 243.0, "GB/s", 338.0, 38),
                    Evidence("counters", "n13 mlx5_4 link_error_recovery", 3, "events", 0, 32),
                    Evidence("throughput", "explained share of the dip", 0.99, "share"),
                ),
                ("check cable and port of n13 mlx5_4 (rail 4); nothing to do in the job",),
            ),
            Finding(
                rules.STRAGGLER.id, WARNING, MEDIUM,
                "rank 17 is late: its peers wait for it",
                "Its kernel queue was empty when it arrived: host-late (data loader, CPU).",
                None,
                (Entity("rank", "rank 17"), Entity("gpu", "n13 GPU1")),
                (Evidence("boxes", "median lateness", 412_000, "ns", 200_000, 41_212),),
                ("profile the input pipeline of rank 17", "compare its CPU binding with others"),
            ),
            Finding(
                rules.SILENT.id, INFO, HIGH,
                "2 processes were timed in part, to spare the application",
                "For up to 12 s. Ranks that counted other operations than their peers are not "
                "compared with them.",
                entities=(Entity("rank", "rank 3"), Entity("rank", "rank 4")),
                evidence=(Evidence("boxes", "the longest", 12.0, "s"),),
            ),
        ),
        timeline=_line(-0.28, throughput),
        stragglers=(
            Straggler("rank 17", "n13", "GPU1", 412e3, 11.2, 0.83, 1.9e12, "host",
                      (_WORLD, _DP), True, 3),
            Straggler("rank 16", "n13", "GPU0", 118e3, 3.1, 0.31, 0.2e12, "unknown",
                      (_WORLD,), False, 3),
        ),
        counters=(
            Counter("n13", "mlx5_4", "port", "link_error_recovery", 3, "events", WARNING,
                    "link_error_recovery 3 (2026-08-02 14:40:00 to 14:41:00 UTC)"),
            Counter("n13", "mlx5_4", "port", "local_ack_timeout_err", 41, "events", WARNING,
                    "local_ack_timeout_err 41"),
        ),
        operations=(
            replace(_OPERATIONS[0], waited_for="rank 17", waited_for_node="n13"),
            *_OPERATIONS[1:],
        ),
        heat=_heat(32, 17, 412e3),
    )  # fmt: skip


@cache
def straggler() -> Card:
    """A rank that all wait for, in an attempt of a requeued array task."""
    card = network()
    return replace(
        card,
        job=replace(_JOB, array_task="810_3", restart=1, attempts=(0, 1), steps=2),
        verdict=Verdict(
            DEGRADED, STRAGGLER, MEDIUM,
            "rank 17 (n13, GPU1) came late by 412 us at the median, in 2 of its 3 communicators",
            None, None, 0.31,
        ),
        findings=card.findings[1:2],
        timeline=TimeLine(WINDOW_S, START_S, 9, (), None, (), True),
        baseline=None,
        heat=_heat(32, 17, 412e3, 9),
    )  # fmt: skip


_HANG_TITLE = (
    "rank 2 (n11 GPU2, pid 4711) stopped calling NCCL at 15:12:44, after AllReduce 1840 of "
    "default_pg; 31 other ranks waited 37 min in 1841 until the job reached its time limit"
)


@cache
def hang() -> Card:
    """A rank that never called an AllReduce."""
    return replace(
        healthy(),
        job=replace(_JOB, state="TIMEOUT", exit_code="0:15"),
        verdict=Verdict(
            HUNG, "", MEDIUM, _HANG_TITLE, 2220.0, 0.276, None,
        ),
        findings=(
            Finding(
                rules.HANG_DIVERGENT.id, CRITICAL, MEDIUM, _HANG_TITLE,
                "31 waited in it for 37 min.",
                Period(START_S + 4364, START_S + 6584),
                (
                    Entity("rank", "rank 2", "n11", "GPU2", "GPU-2c41", "0000:65:00", 4711, 2),
                    Entity("communicator", "default_pg"),
                ),
                (Evidence("boxes", "in flight", 2220, "s", count=31),),
                ("look at what this rank did instead: its stack, its log, its input",),
                victims=tuple(Entity("rank", f"rank {n}") for n in range(32) if n != 2),
                next="ssh n11 \"journalctl --utc --no-pager --since '2026-08-02 15:11:44 UTC' "
                "--until '2026-08-02 15:13:44 UTC'\"",
            ),
        ),
        hangs=(
            Hang(
                _WORLD, 1841, "AllReduce", START_S + 4364, 2220.0, "divergent",
                tuple(f"rank {n}" for n in range(32) if n != 2), ("rank 2",), roots=("rank 2",),
            ),
        ),
        data_quality=replace(
            _QUALITY,
            killed=("rank 2 (n11)",),
            inputs=(*_QUALITY.inputs, Input("ras", "absent"), Input("prometheus", "absent")),
        ),
        baseline=None,
    )  # fmt: skip


@cache
def failed() -> Card:
    """A job that died of its communication; what was not measured is said."""
    return replace(
        healthy(),
        job=replace(
            _JOB, state="NODE_FAIL", exit_code="1:0", num_nodes=8, nodelist="",
            het_components=(48213, 48214),
            components=(
                Component(48213, "n[11-14]"), Component(48214, "m[1-4]", ("m2", "m3")),
            ),
        ),
        verdict=Verdict(FAILED, COMMUNICATION, MEDIUM, "n12 GPU2 fell off the bus (XID 79)"),
        findings=(
            Finding(
                rules.HARDWARE_XID.id, CRITICAL, HIGH,
                "XID 79 of n12 GPU2: it fell off the bus", "",
                Period(START_S + 5000, START_S + 5000), (Entity("gpu", "n12 GPU2"),),
                (Evidence("counters", "XID 79", 1, "events"),), ("drain n12",),
            ),
        ),
        data_quality=DataQuality(
            48, 30, ("m2", "m3"), ("rank 9 (n12)", "rank 10 (n12)"), {"no_slot": 12},
            {"bad_magic": 1, "torn": 2}, "mixed",
            (Input("boxes", "partial", "18 ranks have none"), Input("throughput", "absent")),
            ("n11: counters until 61 s before the job's end",),
            (
                Gap("counted only, NCCL 2.18.3 tells no times", "process", ("rank 4", "rank 5")),
                Gap("no counters, the setting is off", "node", ("n11", "n12", "n13")),
                Gap("operations without a time, counted over all ranks: Broadcast 12 (3 MB)",
                    "process", ()),
            ),
            4,
        ),
        counters=(
            Counter("n12", "GPU2", "xid", "xid", 1, "events", CRITICAL,
                    "XID 79 at 2026-08-02 15:23:20 UTC"),
        ),
        timeline=TimeLine(),
        baseline=None,
    )  # fmt: skip


@cache
def no_data() -> Card:
    """A job in which nothing was measured."""
    return Card(
        replace(_JOB, state="COMPLETED"),
        Verdict(NO_DATA, "", LOW, "no operation was measured: the site's kill switch was on"),
        Environment(),
        DataQuality(32, 0, (), (), {}, {}, "none", (Input("boxes", "absent"),), ()),
    )


@cache
def nothing() -> Card:
    """A card of which all that can be missing is."""
    return Card(
        Job(1),
        Verdict(CANNOT_TELL, "", LOW, ""),
        Environment(),
        DataQuality(None, 0, (), (), {}, {}, "none", (), ()),
    )


@cache
def bare() -> Card:
    """Every part is there once, with all that can be unknown unknown."""
    return Card(
        Job(1),
        Verdict(DEGRADED, UNKNOWN, LOW, ""),
        Environment(),
        DataQuality(None, 1, (), (), {}, {}, "none", (), ()),
        (Finding(rules.SILENT.id, INFO, LOW, "", ""),),
        (Communicator("0x1", "", "unknown", 0, 0, (), 0),),
        (Operations("0x1", "AllReduce", 0, "", 0, 0.0, None, None),),
        (Transport("unknown", 0.0, None, None, None),),
        TimeLine(10, START_S, 1, (Series("unknown", "0x1", "AllReduce", 0, (None,), (0,)),)),
        (Straggler("rank 0", "", "", 0.0, None, None, 0.0, "unknown", (), False),),
        (Hang("0x1", 0, "AllReduce", None, 0.0, "blocked"),),
        (Counter("", "", "", "", 0.0, "", INFO, ""),),
        Baseline(0, (), ()),
        (("rank 0", (None,)),),
    )


@cache
def hostile(text: str = NASTY) -> Card:
    """Every text that could come from a user is this one."""
    slow = Degradation(DIP, text, text, text, 27, -0.3, 300.0, 200.0)
    line = TimeLine(
        WINDOW_S, START_S, WINDOWS,
        (Series(text, text, text, 27, wave(300, 1, -0.3), (1,) * WINDOWS),),
        Throughput(text, text, wave(3, 2)), (slow,),
    )  # fmt: skip
    period = Period(START_S, START_S + 1)
    return Card(
        Job(
            7, text, text, text, text, text, text, text, 1.0, 2.0, 3, text, text, (7, 8), 1,
            (0, 1), 2, text, text, 1, (text,), (Component(7, text, (text,)),),
        ),
        Verdict(DEGRADED, STRAGGLER, HIGH, text),
        Environment((text,), (text,), (text,), 1, (text,)),
        DataQuality(
            3, 1, (text,), (text,), {text: 1}, {text: 1}, text, (Input(text, "partial", text),),
            (text,), (Gap(text, "process", (text,)), Gap(text, "node", (text,))), 1,
        ),
        (
            Finding(
                rules.STRAGGLER.id, WARNING, HIGH, text, text, period,
                (Entity(text, text, text, text, text, text, 1, 1, text),),
                (Evidence(text, text, 1.0, text, 2.0, 3),), (text,), 1.0, 0.1, UNKNOWN,
                (Entity("rank", text, text, text),), text,
            ),
        ),
        (Communicator(text, text, "mixed", 3, 2, (text,), 3, (text,)),),
        (
            Operations(
                text, text, 20, text, 1, 1.0, 1.0, 0.5, True, 2.0, text, 0.1, (text,), text, text
            ),
        ),
        (Transport(text, 1.0, 0.1, 0.1, 1.0),),
        line,
        (Straggler(text, text, text, 1.0, 9.0, 1.0, 1.0, text, (text,), True, 2),),
        (Hang(text, 1, text, 1.0, 70.0, text, *((text,),) * 6),),
        (Counter(text, text, text, text, 1.0, text, WARNING, text),),
        Baseline(5, (text,), (BaselineMetric(text, 1.0, text, 1.0, 1.0, 1.0),)),
        ((text, wave(1e5, 3)),),
        Network(
            (NetworkPeer(text, text, text, 0, 1, text, SEND, 9, 9, 1.0, 1.0, 1.0, 1.0,
                         (QueuePair(1, 0, 9, 9, text),)),), 1, 9, 9, 0, 0, 1.0,
        ),
        HostTimes((HostTime(text, text, 9, 1.0, 1.0, 9, 1.0, 1.0),), 1, 0.1),
    )  # fmt: skip


@cache
def huge() -> Card:
    """A job of 8,192 ranks with every list long and every number large."""
    nodes = tuple(f"node{n:04}" for n in range(1024))
    findings = tuple(replace(one, title=f"{one.title} {'and so on ' * 30}")
                     for one in network().findings * 20)  # fmt: skip
    comms = tuple(
        Communicator(f"0x{n:016x}", f"{'long_name_' * 20}{n}", "mixed", 8192, 1024, nodes, 8000)
        for n in range(100)
    )
    kinds = tuple(
        Operations(one.id, "ReduceScatter", 62, "COLLNET_DIRECT_LL128", 10**18, 1e18, 1e12, 0.999,
                   expected_gbs=1e-6, baseline_delta=1e6, waited_for="rank 8191 " * 9,
                   waited_for_node="node1023 " * 9)
        for one in comms for _ in range(20)
    )  # fmt: skip
    card, heat = network(), _heat(32, 17, 412e3, 60)
    return replace(
        card,
        job=replace(
            _JOB, job_id=4294967295, num_nodes=1024, nodelist="node[0000-1023]",
            name="n" * 1000, end_s=1e18, switches_used=nodes,
        ),
        verdict=replace(card.verdict, cost_s=1e18, cost_share=1e9),
        data_quality=replace(
            _QUALITY, ranks_expected=8192, ranks_seen=7000, nodes_missing=nodes[::2],
            killed=tuple(f"rank {n}" for n in range(8192)),
            missing=tuple(f"line {n}" for n in range(500)),
            gaps=(Gap("not measured", "process", tuple(f"rank {n}" for n in range(7000))),),
        ),
        findings=findings,
        communicators=comms,
        operations=kinds,
        stragglers=card.stragglers * 500,
        hangs=tuple(
            replace(hang().hangs[0], waiting=tuple(f"rank {n}" for n in range(8192)))
            for _ in range(40)
        ),
        counters=tuple(replace(card.counters[0], node=node) for node in nodes),
        heat=tuple((f"rank {n}", heat[n % 32][1]) for n in range(8192)),
        hosts=HostTimes(
            tuple(HostTime(f"rank {n}", nodes[n], 10**18, 1e18, 1e18, 10**18, 1e18, 1e18)
                  for n in range(256)), 8192, 1e18,
        ),
    )  # fmt: skip


CARDS = {
    make.__name__: make
    for make in (
        healthy, network, straggler, hang, failed, no_data, nothing, bare, hostile, huge
    )
}  # fmt: skip
