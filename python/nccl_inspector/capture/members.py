# SPDX-License-Identifier: Apache-2.0
"""All members of a JSON line: what each means, and the column that it becomes.

They are ours and those of NVIDIA's Inspector, formats v4.0 to v4.4. From v4.3 on, the line of an
operation has no header and metadata of its own; they are in the marker before it (restore.py). In
`coll_perf` all names but the first begin with `coll_`, in `p2p_perf` with `p2p_`. The first name is
that word alone.
"""

from dataclasses import dataclass

VARCHAR, BIGINT, UBIGINT, DOUBLE = "VARCHAR", "BIGINT", "UBIGINT", "DOUBLE"

COLL, P2P = "coll", "p2p"
KINDS = COLL, P2P


@dataclass(frozen=True, slots=True)
class LineMember:
    """One member: its name, its SQL type, its column, and its meaning.

    `needed`: an operation without it is refused. `analysed`: the analysis needs it, so it is read
    even if no Parquet file is wanted. Each such member costs some 4 % of the time.
    """

    name: str
    type: str
    column: str
    words: str
    needed: bool = False
    analysed: bool = False


HEADER = (
    LineMember("id", VARCHAR, "comm", "communicator, hexadecimal", True, True),
    LineMember("comm_name", VARCHAR, "comm_name", "name of the communicator", analysed=True),
    LineMember("rank", BIGINT, "rank", "rank in the communicator", True, True),
    LineMember("n_ranks", BIGINT, "nranks", "ranks of the communicator; 0: not known", True, True),
    LineMember("nnodes", BIGINT, "nnodes", "nodes of the communicator; 0: not known", True, True),
)
METADATA = (
    LineMember("inspector_output_format_version", VARCHAR, "format", "format of the line, as v4.0"),
    LineMember("git_rev", VARCHAR, "writer", "name and version of the writer"),
    LineMember("rec_mechanism", VARCHAR, "mechanism", "how it was measured"),
    LineMember("dump_timestamp_us", BIGINT, "dump_us", "Unix time of writing, us", analysed=True),
    LineMember("hostname", VARCHAR, "hostname", "host name", True, True),
    LineMember("pid", BIGINT, "pid", "process id", True, True),
    LineMember("node", VARCHAR, "node", "Slurm's NodeName"),
    LineMember("cluster", VARCHAR, "cluster", "Slurm's cluster"),
    LineMember("slurm_job_id", BIGINT, "job_id", "Slurm's job id"),
    LineMember("slurm_step_id", BIGINT, "step_id", "Slurm's step id"),
    LineMember("slurm_procid", BIGINT, "procid", "number of Slurm's task"),
    LineMember("gpu_uuid", VARCHAR, "gpu_uuid", "UUID of the GPU"),
    LineMember("lines_dropped", BIGINT, "lines_dropped", "lines that the process lost up to now"),
    LineMember(
        "operations_unmeasured", BIGINT, "unmeasured", "operations without a time up to now"
    ),
)
# Names without the prefix. Only p2p_perf has `peer`; only coll_perf has `algo` and `proto`.
PERF = (
    LineMember("", VARCHAR, "func", "function that was called", True, True),
    LineMember("sn", BIGINT, "sn", "number of the operation", True, True),
    LineMember("peer", BIGINT, "peer", "rank at the other end", analysed=True),
    LineMember(
        "msg_size_bytes", UBIGINT, "bytes", "message size as the caller counts it", True, True
    ),
    LineMember("exec_time_us", BIGINT, "time_us", "time of the operation, us", True, True),
    LineMember("timing_source", VARCHAR, "source", "clock that timed the operation", analysed=True),
    LineMember("algobw_gbs", DOUBLE, "algobw_gbs", "algorithm bandwidth by the writer, GB/s"),
    LineMember("busbw_gbs", DOUBLE, "busbw_gbs", "bus bandwidth by the writer, GB/s, with waiting"),
    LineMember("algo", VARCHAR, "algo", "algorithm", analysed=True),
    LineMember("proto", VARCHAR, "proto", "protocol", analysed=True),
    LineMember("channels", BIGINT, "channels", "number of channels"),
    LineMember("exec_time_ns", BIGINT, "exec_ns", "time of the operation, ns", analysed=True),
    LineMember("start_us", BIGINT, "start_us", "Unix time of the call, us", False, True),
    LineMember("end_us", BIGINT, "end_us", "Unix time when NCCL told the end, us", False, True),
    LineMember("gpu_start_ns", BIGINT, "gpu_start_ns", "begin by the GPU's clock, ns", False, True),
    LineMember("user_tag", UBIGINT, "user_tag", "the application's tag"),
    LineMember("kernel_variant", VARCHAR, "kernel_variant", "variant of the kernel"),
)
# Only in verbose lines: event_trace_sn has numbers, event_trace_ts Unix times in us.
TRACES = ("sn", "ts")
CALL_EVENTS = ("start", "stop")
CHANNEL_EVENTS = ("kernel_start", "kernel_stop", "kernel_record")
CHANNEL = "channel_id"

# A marker of v4.1 and later. The totals count from the begin of the communicator. A marker has more
# members than these.
DUMP_STATS = (
    LineMember("coll_records", BIGINT, "", "collectives that follow"),
    LineMember("p2p_records", BIGINT, "", "sends and receives that follow"),
    LineMember("proxy_records", BIGINT, "", "proxy traces that follow"),
    LineMember("coll_dropped_total", BIGINT, "", "collectives that its ring lost"),
    LineMember("p2p_dropped_total", BIGINT, "", "sends and receives that its ring lost"),
)

ONLY_IN = {"peer": P2P, "algo": COLL, "proto": COLL}


def perf_members(kind: str) -> list[tuple[str, LineMember]]:
    """Return the members of `coll_perf` or `p2p_perf` with their full names."""
    return [
        (f"{kind}_{member.name}" if member.name else kind, member)
        for member in PERF
        if ONLY_IN.get(member.name, kind) == kind
    ]


def columns() -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each column of the Parquet file, in order."""
    plain = [(member.column, member.type, member.words) for member in (*HEADER, *METADATA, *PERF)]
    traces = [
        (f"trace_{event}_{trace}", BIGINT, f"{event} of the call: {words}")
        for trace, words in (("sn", "number of the event"), ("ts", "Unix time, us"))
        for event in CALL_EVENTS
    ]
    lists = [
        (f"trace_channels_{trace}", channel_type(trace), "events of each channel")
        for trace in TRACES
    ]
    return [
        ("file", VARCHAR, "file that has the line"),
        ("kind", VARCHAR, "coll or p2p"),
        *plain,
        *traces,
        *lists,
        ("time_ns", BIGINT, "time of the operation, ns: exec_ns, else time_us"),
        ("when_us", BIGINT, "Unix time of the end, us: end_us, else trace and time, else dump_us"),
    ]


def channel_type(trace: str) -> str:
    """Return the SQL type of a trace's list of channels."""
    events = ", ".join(f"{event}_{trace} {BIGINT}" for event in CHANNEL_EVENTS)
    return f"STRUCT({CHANNEL} {BIGINT}, {events})[]"
