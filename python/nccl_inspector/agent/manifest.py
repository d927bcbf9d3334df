# SPDX-License-Identifier: Apache-2.0
"""slurmd's facts about a job: the manifest that the prolog writes."""

import re
from dataclasses import dataclass

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.hostlist import is_host
from nccl_inspector.system.printable import printable

MANIFEST_BYTES_MAX = 1 << 20  # a list of ten thousand scattered node names takes about 100 KB
FORMAT = "1"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One attempt of one job on this node; texts that slurmd did not tell are empty."""

    job_id: int
    uid: int
    gid: int
    user: str
    account: str
    partition: str
    node: str
    nodelist: str
    num_nodes: int
    cluster: str
    gpus: str
    restart: int
    het_job_id: str
    work_dir: str
    mode: str
    start: int  # start of the prolog, Unix seconds
    job_start: int  # start of the job by the controller; 0 before Slurm 23.02
    job_end: int  # when its limit ends it, as known at its start; 0 before Slurm 23.02


_NUMBERS = {"job_id", "uid", "gid", "num_nodes", "restart", "start", "job_start", "job_end"}
# An older prolog does not write them.
_LATER = {"job_end": ""}
_REQUIRED_NUMBERS = {"job_id", "uid", "gid"}


def _words(text: str) -> dict[str, str]:
    lines = text.split("\n")
    if lines[-2:] != ["end", ""]:
        raise RefusedError("torn_manifest", "no line `end`")
    words: dict[str, str] = {}
    for line in lines[:-2]:
        key, equals, value = line.partition("=")
        if not equals or key in words:
            raise RefusedError("bad_manifest", "a line is not key=value, or a key is there twice")
        words[key] = printable(value)
    return words


def _number(words: dict[str, str], key: str) -> int:
    text = words[key]
    if not text and key not in _REQUIRED_NUMBERS:
        return 0
    if not re.fullmatch("[0-9]{1,18}", text):
        raise RefusedError("bad_manifest", f"{key} is not a number")
    return int(text)


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest; unknown keys (of a later release) are ignored.

    Raises:
        RefusedError: it is torn (no last line `end`), or not a manifest of format 1.
    """
    words = _LATER | _words(data.decode("utf-8", "replace"))
    names = Manifest.__dataclass_fields__.keys()
    missing = [name for name in ("format", *names) if name not in words]
    if missing:
        raise RefusedError("bad_manifest", f"no {missing[0]}")
    if words["format"] != FORMAT:
        raise RefusedError("bad_manifest", "another format")
    if not is_host(words["node"]):
        raise RefusedError("bad_manifest", "node is not a node's name")
    fields = {name: _number(words, name) if name in _NUMBERS else words[name] for name in names}
    return Manifest(**fields)  # type: ignore[arg-type]  # _NUMBERS says which are numbers
