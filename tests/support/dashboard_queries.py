"""Every expression of a dashboard, as Grafana would send it for chosen variables."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]

_VALUES = re.compile(r"label_values\((.*), (\w+)\)", re.DOTALL)


def fill_in(expr: str, values: Mapping[str, str]) -> str:
    """The expression with `$name` and `${name}` replaced; KeyError for one without a value."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: values[match[1] or match[2]], expr)


def panel_expressions(board: Json) -> Iterator[tuple[str, str]]:
    """Title of the panel with the query's letter, and the expression with its variables."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield f"{panel['title']} ({target['refId']})", target["expr"]


def variable_expressions(board: Json) -> Iterator[tuple[str, str]]:
    """Name of the variable, and an expression that has series where the variable has values."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = _VALUES.fullmatch(variable["query"]["query"])
            assert match, variable["query"]
            yield f"${variable['name']}", f"group by ({match[2]}) ({match[1]})"


def vendor_expressions() -> Iterator[tuple[str, str]]:
    """What the panels of the dashboard that NVIDIA publishes for its Inspector ask.

    Five rows; in each bandwidth and time, of communicators on one node and of
    the others; averaged over all ranks.
    """
    rows = [("p2p", "p2p_operation", name) for name in ("Recv", "Send")]
    rows += [("", "collective", name) for name in ("ReduceScatter", "AllReduce", "AllGather")]
    for prefix, label, operation in rows:
        bandwidth = f"nccl_{prefix}_bus_bandwidth_gbs" if prefix else "nccl_bus_bandwidth_gbs"
        time = f"nccl_{prefix or 'collective'}_exec_time_microseconds"
        for metric in (bandwidth, time):
            for scope, by in (('n_nodes="1"', ""), ('n_nodes!="1"', ", n_nodes")):
                own = f'cluster="$cluster", slurm_job_id="$jobid", {label}="{operation}", {scope}'
                yield (
                    f"{operation}, {scope}",
                    f"avg by (message_size, nranks{by}) ({metric}{{{own}}})",
                )
