# SPDX-License-Identifier: Apache-2.0
"""What a probe measured, and its form in a file: one line of JSON for each probe."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nccl_inspector.system.checked_json import Checks

FORMAT = 1
TCP, NCCL = "tcp", "nccl"
BACKENDS = (TCP, NCCL)
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter")
_BYTES_MAX = 1 << 50
_COUNT_MAX = 1 << 24
_GBS_MAX = 1e9
_SECONDS_MAX = 1e9
ROWS_MAX = 256
CELLS_MAX = 1 << 20
NODES_MAX = 1 << 12


@dataclass(frozen=True, slots=True)
class Kind:
    """What two probes must have in common to be compared. `device`: the GPU's model."""

    backend: str
    collective: str
    ranks: int
    nodes: int
    device: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A size in bytes of the larger buffer. Times are of one operation, the slowest rank's."""

    size_bytes: int
    repetitions: int
    operations: int  # in each repetition
    median_s: float
    least_s: float
    alg_gbs: float
    bus_gbs: float  # both of the median


@dataclass(frozen=True, slots=True)
class Cell:
    """The rate at which one node sends to another one."""

    sender: str
    receiver: str
    gbs: float


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe. `wrong_ranks`: those that received other data than were sent."""

    kind: Kind
    time_s: int
    nodes: tuple[str, ...]
    rows: tuple[Row, ...]
    cells: tuple[Cell, ...] = ()
    version: str = ""  # of NCCL
    wrong_ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Row | None:
        """The size with the highest bus bandwidth: what is compared with other probes."""
        return max(self.rows, key=lambda row: row.bus_gbs, default=None)


def to_json(result: ProbeResult) -> dict[str, Any]:
    """Return the result as JSON has it."""
    return {"format": FORMAT, **asdict(result)}


def _kind(checks: Checks, value: Any) -> Kind:
    table = checks.table(value)
    return Kind(
        checks.text(table.get("backend")),
        checks.text(table.get("collective")),
        checks.integer(table.get("ranks"), _COUNT_MAX),
        checks.integer(table.get("nodes"), _COUNT_MAX),
        checks.text(table.get("device")),
    )


def _row(checks: Checks, value: Any) -> Row:
    table = checks.table(value)
    return Row(
        checks.integer(table.get("size_bytes"), _BYTES_MAX),
        checks.integer(table.get("repetitions"), _COUNT_MAX),
        checks.integer(table.get("operations"), _COUNT_MAX),
        checks.figure(table.get("median_s"), _SECONDS_MAX),
        checks.figure(table.get("least_s"), _SECONDS_MAX),
        checks.figure(table.get("alg_gbs"), _GBS_MAX),
        checks.figure(table.get("bus_gbs"), _GBS_MAX),
    )


def _cell(checks: Checks, value: Any) -> Cell:
    table = checks.table(value)
    return Cell(
        checks.text(table.get("sender")),
        checks.text(table.get("receiver")),
        checks.figure(table.get("gbs"), _GBS_MAX),
    )


def _texts(checks: Checks, value: Any, most: int) -> tuple[str, ...]:
    return tuple(checks.text(one) for one in checks.rows(value, most=most))


def from_json(checks: Checks, value: Any) -> ProbeResult:
    """Return the result in a JSON value; nothing in it is believed to be well formed.

    Raises:
        RefusedError: it is not a result, or one of another format.
    """
    table: Mapping[str, Any] = checks.table(value)
    if table.get("format") != FORMAT:
        raise checks.refused("not a probe of this release's format")
    return ProbeResult(
        _kind(checks, table.get("kind")),
        checks.time(table.get("time_s")),
        _texts(checks, table.get("nodes"), NODES_MAX),
        tuple(_row(checks, one) for one in checks.rows(table.get("rows"), most=ROWS_MAX)),
        tuple(_cell(checks, one) for one in checks.rows(table.get("cells"), most=CELLS_MAX)),
        checks.text(table.get("version")),
        tuple(checks.integer(one, _COUNT_MAX)
              for one in checks.rows(table.get("wrong_ranks"), most=_COUNT_MAX)),
        _texts(checks, table.get("notes"), ROWS_MAX),
    )  # fmt: skip
