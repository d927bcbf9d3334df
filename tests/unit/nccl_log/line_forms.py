# SPDX-License-Identifier: Apache-2.0
"""The forms of NCCL's and PyTorch's lines, by release, and what launchers put before them.

Each form composes the lines of one warning as a release writes it. Where they are from:

- NCCL: `ncclDebugLog` of src/debug.cc (src/include/debug.h in 2.3) and `Init START` of src/init.cc,
  at the tags v2.3.7-1, v2.4.8-1, v2.8.4-1, v2.12.12-1, v2.18.3-1, v2.23.4-1, v2.27.7-1, v2.28.9-1
  and v2.30.7-1; the format strings in the libraries of 2.31.2 and 2.32.3. An empty line comes
  before each warning.
- aws-ofi-nccl: include/nccl_ofi_log.h at v1.3.0 to v1.19.2. The place is the compiler's name of the
  function: only a name in C, its whole signature in C++ (from 1.15 on).
- RCCL: src/debug.cc; the paths are those of its builds.
- PyTorch: c10/util/Logging.cpp, ProcessGroupNCCL.cpp, and lines in public reports of bugs; the
  releases that a form is called by are about those.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ISO: Final = "2026-11-25T10:11:12.123456789Z"
_RPM = "/longer_pathname_so_that_rpms_can_support_packaging_the_debug_info_for_all_os_profiles"
_SIGNATURE = "int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, fi_cq_err_entry*)"
_METHOD = "virtual int nccl_net_ofi_rdma_ep_t::connect(const char*, void*, nccl_net_comm**)"
_TEMPLATE = "std::unique_ptr<T> make(Args&& ...) [with T = cm::req; Args = {{int&, void*}}]"


@dataclass(frozen=True)
class Writer:
    """One process of the job."""

    rank: int
    host: str
    pid: int
    gpu: int

    @property
    def head(self) -> str:
        """What stands before a line of its own thread."""
        return f"{self.host}:{self.pid}:{self.pid + 5000} [{self.gpu}]"


def writers(ranks: int, hosts: Callable[[int], str]) -> list[Writer]:
    """Return ranks, eight on each node; pids come again on each node."""
    return [Writer(at, hosts(at // 8), 4000 + at % 8, at % 8) for at in range(ranks)]


HOSTS: Final[dict[str, Callable[[int], str]]] = {
    "numbered": lambda node: f"gpu-{node:02d}",
    "addresses": lambda node: f"ip-10-1-0-{node}",
    "racks": lambda node: f"x{3000 + node}c0s1b0n0",
    "pods": lambda node: f"trainer_{node}-worker",
    "containers": lambda node: f"4e9a{node:x}654171e",
}

# Writer, second, place in the source, text -> lines
Form = Callable[[Writer, int, str, str], list[str]]


def _warn(clock: str, mark: str = "NCCL WARN", place: str = "{site}") -> Form:
    """Return a form; `clock` is a format of the seconds."""

    def lines(of: Writer, second: int, site: str, text: str) -> list[str]:
        at = clock.format(second)
        return ["", f"{at}{of.head} {place.format(site=site)} {mark} {text}"]

    return lines


_DAY = "[2026-11-25 10:11:{:02d}] "
NCCL_FORMS: Final[dict[str, Form]] = {
    "NCCL 2.3 to 2.25": _warn(""),
    "NCCL 2.26 to 2.30": _warn(_DAY),
    "NCCL 2.26, subseconds": _warn("[2026-11-25 10:11:{:02d}.250000] "),
    "NCCL 2.26, hours only": _warn("10:11:{:02d} "),
    "NCCL 2.26, no brackets": _warn("2026-11-25 10:11:{:02d} "),
    "NCCL 2.30.7, function": _warn(_DAY, place="{site} (ncclSocketProgressOpt)"),
    "NCCL 2.30.7, lambda": _warn(_DAY, place="{site} (operator())"),
    "NCCL 2.31 and 2.32": _warn(_DAY, place="src/{site} (ncclIbTest)"),
    "NCCL 2.31 and 2.32, no function": _warn(_DAY, place="src/{site}"),
    "NCCL 2.32, attention": _warn(_DAY, "NCCL ATTN", "{site} (ncclTopoCheck)"),
    "NCCL 2.32, attention without a function": _warn("", "NCCL ATTN"),
    "RCCL": _warn("", place=f"{_RPM}/src/out/build/rccl/hipify/src/{{site}}"),
    "aws-ofi-nccl, C": _warn("", place="ofi_process_cq:196"),
    "aws-ofi-nccl, C++": _warn(_DAY, place=f"{_SIGNATURE}:46"),
    "aws-ofi-nccl, method": _warn(_DAY, place=f"{_METHOD}:4321"),
    "aws-ofi-nccl, template": _warn(_DAY, place=f"{_TEMPLATE}:77"),
}
# Forms whose lines have a date.
TIMED: Final = frozenset(
    name for name, form in NCCL_FORMS.items() if "2026" in form(Writer(0, "n", 1, 0), 1, "", "")[1]
)

# Writer, ranks -> the text of level INFO that says which rank it is
INITS: Final[dict[str, Callable[[Writer, int], str]]] = {
    "2.4": lambda of, ranks: (
        f"comm 0x7f00{of.rank:04x} rank {of.rank} nranks {ranks} cudaDev "
        f"{of.gpu} nvmlDev {of.gpu} - Init COMPLETE"
    ),
    "2.8 to 2.14": lambda of, ranks: (
        f"comm 0x7f00{of.rank:04x} rank {of.rank} nranks {ranks} "
        f"cudaDev {of.gpu} busId 1b000 - Init COMPLETE"
    ),
    "2.18": lambda of, ranks: (
        f"comm 0x7f00{of.rank:04x} rank {of.rank} nranks {ranks} cudaDev "
        f"{of.gpu} nvmlDev {of.gpu} busId 1b000 commId 0xb - Init COMPLETE"
    ),
    "2.22": lambda of, ranks: (
        f"ncclCommInitRank comm 0x7f00{of.rank:04x} rank {of.rank} nranks "
        f"{ranks} cudaDev {of.gpu} nvmlDev {of.gpu} busId 1b000 commId 0xb - Init COMPLETE"
    ),
    "2.30": lambda of, ranks: (
        f"[Rank {of.rank}] ncclCommInitRankConfig comm 0x7f00{of.rank:04x} "
        f"rank {of.rank} nranks {ranks} cudaDev {of.gpu} nvmlDev {of.gpu} busId 1b000 commId 0xb - "
        "Init START"
    ),
    "2.31 and 2.32": lambda of, ranks: (
        f"ncclCommInitRankConfig comm 0x7f00{of.rank:04x} rank {of.rank} nranks {ranks} cudaDev "
        f"{of.gpu} nvmlDev {of.gpu} busId 1b000 commId 0xb - Init COMPLETE"
    ),
    "2.31 and 2.32, split": lambda of, ranks: (
        f"ncclCommSplit comm 0x7f00{of.rank:04x} rank {of.rank} nranks {ranks} cudaDev "
        f"{of.gpu} nvmlDev {of.gpu} busId 1b000 commId 0xb parent 0x7e00 childCount 1 color 0 key "
        f"{of.rank} - Init COMPLETE"
    ),
}

_WORK = "WorkNCCL({}OpType=ALLREDUCE, {}Timeout(ms)=600000) ran for 600{:03d} milliseconds before "
_WORK += "timing out."


def _caught(of: Writer, head: str, size: str = "", number: str = "") -> str:
    text = _WORK.format(number, size, of.rank)
    return f"{head} Watchdog caught collective operation timeout: {text}"


_SIZES, _NUMBER = "NumelIn=1, NumelOut=1, ", "SeqNum=5, "
# Writer, second -> a line of PyTorch's watchdog
TORCH_FORMS: Final[dict[str, Callable[[Writer, int], str]]] = {
    "PyTorch 1.9 to 2.0": lambda of, _: _caught(
        of, f"[E ProcessGroupNCCL.cpp:566] [Rank {of.rank}]"
    ),
    "PyTorch 2.1 to 2.2": lambda of, _: _caught(
        of, f"[E ProcessGroupNCCL.cpp:475] [Rank {of.rank}]", _SIZES, _NUMBER
    ),
    "PyTorch 2.0, with glog": lambda of, second: _caught(
        of, f"E1125 10:11:{second:02d}.250000 {of.pid} ProcessGroupNCCL.cpp:475] [Rank {of.rank}]"
    ),
    "PyTorch 2.3": lambda of, _: _caught(
        of, f"[rank{of.rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {of.rank}]", _SIZES, _NUMBER
    ),
    "PyTorch 2.4": lambda of, second: _caught(
        of,
        f"[rank{of.rank}]:[E1125 10:11:{second:02d}.250000000 ProcessGroupNCCL.cpp:607] "
        f"[Rank {of.rank}]",
        _SIZES, _NUMBER,
    ),
    "PyTorch 2.4, group": lambda of, second: (
        f"[rank{of.rank}]:[E1125 10:11:{second:02d}.250000000 ProcessGroupNCCL.cpp:1709] [PG 0 "
        f"(default_pg) Rank {of.rank}] Timeout at NCCL work: 5, last enqueued NCCL work: 5, last "
        "completed NCCL work: 4."
    ),
    "PyTorch 2.5 to 2.13": lambda of, second: (
        f"[rank{of.rank}]:[E1125 10:11:{second:02d}.250000000 ProcessGroupNCCL.cpp:2299] [PG ID 0 "
        f"PG GUID 0(default_pg) Rank {of.rank}]  failure detected by watchdog at work sequence id: "
        "5 PG status: last enqueued work: 5, last completed work: 4"
    ),
    "PyTorch 2.6, group without a name": lambda of, second: (
        f"[rank{of.rank}]:[E705 10:11:{second:02d}.250000000 ProcessGroupNCCL.cpp:1899] [PG ID 0 "
        f"PG GUID 0 Rank {of.rank}] Process group watchdog thread terminated with exception: CUDA "
        "error"
    ),
}  # fmt: skip

# rank, host, line -> what a launcher makes of it
PREFIXES: Final[dict[str, Callable[[int, str, str], str]]] = {
    "none": lambda _rank, _host, line: line,
    "srun --label": lambda rank, _host, line: f"{rank}: {line}",
    "mpirun --tag-output": lambda rank, _host, line: f"[1,{rank}]<stdout>:{line}",
    "prterun": lambda rank, _host, line: f"[prterun-n0-4711@1,{rank}]<stdout>: {line}",
    "mpirun --timestamp": lambda _rank, _host, line: f"Wed Nov 25 10:11:12 2026<stdout>:{line}",
    "hydra": lambda rank, _host, line: f"[{rank}] {line}",
    "torchrun": lambda rank, _host, line: f"[rank{rank}]: {line}",
    "torchrun default": lambda rank, _host, line: f"[default{rank % 8}]:{line}",
    "ray": lambda rank, _host, line: f"(RayWorkerWrapper pid={4000 + rank}, ip=10.1.0.9) {line}",
    "ray twice": lambda rank, _host, line: f"(Engine pid=7) (Worker[rank={rank}] pid=9) {line}",
    "colours": lambda rank, _host, line: f"\x1b[36m(Worker pid={rank})\x1b[0m {line}\x1b[0m",
    "kubectl --prefix": lambda rank, _host, line: f"[pod/worker-{rank}/pytorch] {line}",
    "kubectl --timestamps": lambda _rank, _host, line: f"{ISO} {line}",
    "CRI": lambda _rank, _host, line: f"{ISO} stdout F {line}",
    "CloudWatch": lambda _rank, _host, line: f"  | 2026-11-25T10:11:12.123-07:00 | {line}",
    "CloudWatch, glued": lambda _rank, _host, line: f"2026-11-25T10:11:12.123-07:00{line}",
    "glued, UTC": lambda _rank, _host, line: f"{ISO}{line}",
    "journal": lambda rank, host, line: f"Nov 25 10:11:12 {host} train[{rank + 7}]: {line}",
    "Python's logging": lambda _rank, _host, line: f"[2026-11-25 10:11:12,123] [INFO] {line}",
    "pdsh": lambda _rank, host, line: f"{host}: {line}",
    "pdsh twice": lambda _rank, host, line: f"{host}: {host}: {line}",
    "DeepSpeed": lambda rank, _host, line: f"worker-{rank // 8}: {line}",
    "quoted": lambda _rank, _host, line: f"> {line}",
    "box": lambda _rank, _host, line: f"│ {line}{' ' * 20}│",
    "docker": lambda _rank, _host, line: json.dumps(
        {"log": f"{line}\n", "stream": "stdout", "time": ISO}
    ),
    "windows": lambda _rank, _host, line: f"{line}\r",
}  # fmt: skip
