# SPDX-License-Identifier: Apache-2.0
"""What the profiler plugin costs, beside one that does nothing under the same calls.

Both play in one process and in turns, in an order that a coin decides. A net
time is the difference of their medians over 9 rounds, of those 9 rounds in which
the machine was least disturbed by others. Where two threads hand operations over
on two cores it is of the middle 9, as a throughput is: there the do-nothing plugin
too has a fast and a slow pace, by how close the one thread is behind the other.
Calls of the C library are counted; the processor's own tick counter cannot be, and
is only timed.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.bench.figure import Figure
from tests.bench.played import API, BLOCK, Both, Played, arguments, environment, play, raw_dir
from tests.support.repository import BUILD

LIB = BUILD / "bench"
DUMP_INTERVAL_US = 100_000
GENTLE_INTERVAL_US = 30_000_000  # the setting's default
SERIES = 1440
NONE: dict[str, str] = {}
JSON = {"NCCL_INSPECTOR_JSON": "1", "NCCL_INSPECTOR_DUMP_DIR": "{raw}/json"}


def _net(
    played: Played,
    row: str,
    what: str,
    limit: float | None = None,
    vendor: str = "",
    both: Both | None = None,
) -> Figure:
    both, count = both or played.quietest(row), len(played.of(row))
    return Figure(
        what, "ns", both.net, limit, False, both.ours, both.nothing, count, played.lost, vendor
    )


def _middle(blocks: Sequence[Both], order: Callable[[Both], float]) -> Both:
    return sorted(blocks, key=order)[len(blocks) // 2]


def _thrice(folder: Path, part: str, rounds: int, env: Mapping[str, str] = NONE) -> Played:
    """Play so many rounds in each of three processes, because their memory lies differently.

    Whole blocks of them, so that none is of two processes.
    """
    played = Played()
    for _ in range(3):
        play(folder, part, rounds, into=played, env=env)
    return played


def _warm(folder: Path, rounds: int) -> list[Figure]:
    """Both halves on one core."""
    played = _thrice(folder, "warm", max(3, rounds // 27 * BLOCK))
    net = {channels: played.quietest(f"kernel/{channels}").net for channels in (1, 8, 32)}
    slope = {channels: (net[channels] - net[1]) / (channels - 1) for channels in (8, 32)}
    count, lost = len(played.of("app/8")), played.lost

    def of_kernel(what: str, ns: float, limit: float, vendor: str = "") -> Figure:
        return Figure(what, "ns", ns, limit, count=count, lost=lost, vendor=vendor)

    return [
        _net(played, "app/8", "application thread per operation, one core", 40, "~200"),
        of_kernel("kernel events per channel, 8 channels", slope[8], 10, "~165"),
        of_kernel("kernel events per channel, 32 channels", slope[32], 7, "~165"),
        of_kernel("kernel events per operation, besides", net[1] - slope[8], 40),
        _net(played, "mixed_app/8", "application thread per operation, sizes mixed, one core", 45),
        _net(played, "sends_app/8", "application thread per lone Send or Recv, one core", 40),
        _net(played, "deep_app/8", "application thread per operation, 1,900 in flight", 45),
        _net(played, "sends_kernel/8", "kernel events per lone Send or Recv of 8 channels"),
    ]


def _versions(folder: Path, rounds: int) -> list[Figure]:
    """Later interfaces beside v5: the middle one of turns, each soon after v5's own."""
    turns = []
    for _ in range(9):
        turn = {api: Played() for api in (API, 6, 7)}
        for api, played in turn.items():
            play(folder, "warm", max(1, rounds // 54) * BLOCK, into=played, api=api)
        turns.append(turn)
    figures = []
    for api in (6, 7):
        for row, what in (("app/8", "application thread"), ("kernel/8", "kernel events")):
            nets = [(turn[api].quietest(row).net, turn[API].quietest(row).net) for turn in turns]
            later, first = sorted(nets, key=lambda both: both[0] / both[1])[len(nets) // 2]
            figures.append(
                Figure(
                    f"v{api} beside v{API}, {what} per operation of 8 channels",
                    "%",
                    100 * later / first,
                    110,
                    ours=later,
                    nothing=first,
                    count=len(turns),
                    lost=sum(turn[api].lost for turn in turns),
                )
            )
    tagged = min((turn[7] for turn in turns), key=lambda one: sum(one.of("tagged_app/8")))
    what = "v7, application thread per operation with a tag of the user, one core"
    return [*figures, _net(tagged, "tagged_app/8", what)]


def _pairs(folder: Path, rounds: int) -> list[Figure]:
    # Millions of operations a second are above any budget: on a slow day, when it takes more than
    # 5 s, the guard would let half of them be untimed, which is neither lost nor the whole work.
    unguarded = {"NCCL_INSPECTOR_BUDGET_PERCENT": "0"}
    played = _thrice(folder, "pairs", max(1, rounds // 100) * BLOCK, unguarded)
    figures = []
    for row, what, vendor in (
        ("app_two_cores", "application thread per operation, two cores", "~200"),
        ("sends_two_cores", "application thread per lone Send or Recv, two cores", ""),
    ):
        middle = _middle(played.blocks(row, 50), lambda block: block.net)
        figures.append(_net(played, row, what, 60, vendor, middle))
    for pairs in (1, 2, 4):
        row = f"throughput/{pairs}"
        # Threads that share cores: the least disturbed rounds of one are not those of the other.
        both = _middle(played.blocks(row, 50), lambda block: block.ours / block.nothing)
        figures.append(
            Figure(
                f"throughput, {pairs} pair{'s' * (pairs > 1)} of threads, op/s",
                "%",
                100 * both.ours / both.nothing,
                80,
                at_least=True,
                ours=both.ours,
                nothing=both.nothing,
                count=len(played.of(row)),
                lost=played.lost,
                vendor="350-470 k op/s",
            )
        )
    lost = "operations lost at full speed"
    return [*figures, Figure(lost, "ops", played.lost, 0, ours=played.told, count=1)]


def _paced(folder: Path, rounds: int) -> list[Figure]:
    played = play(folder, "paced", max(200, 20 * rounds))
    figures = []
    for half, limit_us, vendor in (("app", 0.2, "1.2-2.1"), ("kernel", 0.45, "4.2-4.9")):
        row = f"paced_{half}"
        rare = played.blocks(row, 99, max(200, rounds * 2))
        middle = _middle(rare, lambda block: block.net)
        common = played.quietest(row, max(200, rounds * 2))
        for percent, both, limit in ((50, common, limit_us), (99, middle, 1.5)):
            figures.append(
                Figure(
                    f"2,000 op/s, 16 channels: {half} thread, p{percent}",
                    "us",
                    both.net / 1e3,
                    limit,
                    ours=both.ours / 1e3,
                    nothing=both.nothing / 1e3,
                    count=len(played.of(row)),
                    lost=played.lost,
                    vendor=vendor if percent == 50 else "",
                )
            )
    faults = played.one("faults")
    return [*figures, Figure("page faults of both threads meanwhile", "faults", faults, 0)]


def _counts(folder: Path) -> list[Figure]:
    played = play(folder, "counts", env={"LD_PRELOAD": str(LIB / "count.so")})
    what = "per operation of 8 channels"
    return [
        Figure(
            f"locks {what}",
            "calls",
            played.one("locks") - played.one("locks", "nothing"),
            0,
            vendor="28",
        ),
        Figure(
            f"clock reads {what}, but of the tick counter",
            "calls",
            played.one("clocks") - played.one("clocks", "nothing"),
            2,
            vendor="43",
        ),
        *_system_calls(folder),
    ]


def _system_calls(folder: Path) -> list[Figure]:
    """Count them with strace; nothing where there is none, or where it may not trace."""
    strace = shutil.which("strace")
    if not strace:
        return []
    trace = folder / "trace"
    with raw_dir(folder) as raw:
        done = subprocess.run(
            [strace, "-qq", "-o", trace, *arguments("counts", 0)],
            env=environment(raw, 1_000_000, {}),
            capture_output=True,
            check=False,
        )
    if done.returncode:
        return []
    calls = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    marks = [i for i, call in enumerate(calls) if call.startswith("close(-4711)")]
    calls_per_op = (marks[3] - marks[2] - 1) / 1000
    return [Figure("system calls per operation of 8 channels", "calls", calls_per_op, 0)]


def _sustained(folder: Path, rounds: int) -> list[Figure]:
    bursts = max(200, 10 * rounds)
    prom = play(folder, "sustained", bursts, interval_us=DUMP_INTERVAL_US)
    what = "operations lost at 20,000 op/s"
    figures = [
        Figure(f"{what}, prom", "ops", prom.lost, 0, ours=prom.told, vendor="66 % at 2,000 op/s")
    ]
    both = play(folder, "sustained", bursts, interval_us=DUMP_INTERVAL_US, env=JSON)
    if both.json_lines is None:
        return figures
    lost = both.told - both.json_lines
    slow, slow_json = (_gentle(folder, rounds, env) for env in (NONE, JSON))
    return [
        *figures,
        Figure(f"{what}, JSON", "ops", lost, 0, ours=both.told, vendor="66 % at 2,000 op/s"),
        _json_cpu("20,000 op/s", prom, both, vendor="5.5"),
        _json_cpu("2,000 op/s", slow, slow_json),
    ]


def _gentle(folder: Path, rounds: int, env: Mapping[str, str]) -> Played:
    bursts = max(200, 40 * rounds)
    return play(folder, "gentle", bursts, interval_us=GENTLE_INTERVAL_US, env=env)


def _json_cpu(rate: str, prom: Played, both: Played, vendor: str = "") -> Figure:
    cpu_us = 1e3 * (both.one("sustained/cpu_ms") - prom.one("sustained/cpu_ms")) / both.told
    lost = both.told - (both.json_lines or 0)
    return Figure(f"JSON: CPU per operation at {rate}", "us", cpu_us, 0.8, lost=lost, vendor=vendor)


def _finalize(folder: Path, rounds: int) -> list[Figure]:
    """The second time the file system stops answering while the plugin's thread writes."""
    figures = []
    block = {"LD_PRELOAD": str(LIB / "block.so"), "BLOCK_DIR": "{raw}"}
    for what, env in (("", NONE), (", output blocked", block)):
        played = Played()
        for _ in range(max(3, rounds // 30)):
            play(folder, "finalize", into=played, interval_us=DUMP_INTERVAL_US, env=env)
        times = played.of("finalize")
        figures.append(
            Figure(
                f"last finalize{what}, slowest",
                "ms",
                max(times),
                100,
                count=len(times),
                lost=played.lost,
                vendor="20000-29000",
            )
        )
    return figures


def _memory(folder: Path) -> list[Figure]:
    played = play(folder, "memory")
    process, comm, churn = (played.one(f"memory/{row}") for row in ("process", "comm", "churn"))
    lost = played.lost
    return [
        Figure("memory of a process, PSS", "MiB", process / 1024, 4, lost=lost, vendor="2.3"),
        Figure("memory of a further communicator", "KiB", comm, 64, count=63, vendor="6400"),
        Figure("memory left by 10,000 communicators", "KiB", churn, 256, lost=lost),
    ]


def _count_series(raw: Path) -> int:
    texts = [path.read_text(encoding="ascii") for path in raw.glob("*.prom")]
    return sum(
        bool(line) and not line.startswith("#") for text in texts for line in text.splitlines()
    )


def _dump(folder: Path, rounds: int) -> list[Figure]:
    """CPU of the plugin's thread, with its other work, per file's worth of series."""
    played, intervals = Played(), max(5, rounds // 10)
    with raw_dir(folder) as raw:
        env = environment(raw, DUMP_INTERVAL_US, {"LD_LIBRARY_PATH": str(BUILD / "fakecuda")})
        with subprocess.Popen(
            arguments("dump", intervals),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            if process.stdout is None:
                raise AssertionError("Popen gave no pipe")
            for _ in range(2):
                played.add(process.stdout.readline())
            series = _count_series(raw)
            process.communicate("\n", timeout=30)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, "dump")
    dumps = played.one("dump/seconds") * 1e6 / DUMP_INTERVAL_US
    per_dump = played.one("dump/cpu_ms") / dumps
    what = f"CPU of a .prom dump, per {SERIES} series ({series} in 6 files)"
    return [Figure(what, "ms", per_dump * SERIES / series, 2, count=int(dumps), vendor="15")]


def measure(folder: Path, rounds: int) -> list[Figure]:
    """Measure the plugin that is built.

    Raises:
        subprocess.SubprocessError: a part failed.
    """
    parts: list[Callable[[Path, int], list[Figure]]] = [
        _warm,
        _versions,
        _pairs,
        _paced,
        lambda path, _: _counts(path),
        _sustained,
        _finalize,
        lambda path, _: _memory(path),
        _dump,
    ]
    return [figure for part in parts for figure in part(folder, rounds)]
