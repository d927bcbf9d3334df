# SPDX-License-Identifier: Apache-2.0
"""The facts that checks judge: what was read on a host, of a job, or in an image."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TypeAlias, TypeVar

from nccl_inspector.agent.status import NodeStatus
from nccl_inspector.controller.status import ServiceStatus
from nccl_inspector.doctor.elf import Elf
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import Note

Release = tuple[int, int]  # of Slurm or of glibc: major, minor
Version = tuple[int, int, int]  # of NCCL

_T = TypeVar("_T")


class CannotTellError(Exception):
    """A fact is not known; the text says why."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """In place of a fact that could not be read."""

    reason: str


Fact: TypeAlias = _T | CannotTell
NOT_READ = CannotTell("it was not looked at")


def known(fact: Fact[_T]) -> _T:
    """Return a fact.

    Raises:
        CannotTellError: it is not known.
    """
    if isinstance(fact, CannotTell):
        raise CannotTellError(fact.reason)
    return fact


def release_of(text: str) -> Release | None:
    """Return the release in what `slurmd -V` prints, such as `slurm-wlm 22.05.8`."""
    match = re.match(r"slurm\S* ([0-9]{2})\.([0-9]{1,2})\b", text)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration file; if it is refused, `values` has the defaults."""

    path: Path
    refused: str
    values: Config


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file or directory; `problem` is the system's message if it cannot be looked at.

    `path` is the one that was asked for. Links are followed.
    """

    path: Path
    problem: str = ""
    uid: int = 0
    gid: int = 0
    mode: int = 0o100755  # with the kind of file
    link_to: str = ""  # the target, if it is a link
    writable_above: str = ""  # a directory above it that others than root may change

    @property
    def permissions(self) -> int:
        return self.mode & 0o7777

    @property
    def dangling(self) -> bool:
        """Whether it is a link whose target is missing."""
        return bool(self.problem and self.link_to)


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library; `elf` is None if it cannot be read or is not one."""

    file: FileFacts
    elf: Elf | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Slurm:
    """Slurm's configuration as slurmctld has it, and this host's commands.

    A value of `config` that is a list has its parts separated by commas.
    """

    config: Mapping[str, str]
    command_release: Release | None
    slurmd_release: Release | None  # None: there is no slurmd here
    node_name: str = ""
    node_state: str = ""
    node_reason: str = ""


@dataclass(frozen=True, slots=True)
class StackLine:
    """A line of plugstack.conf that names our plugin."""

    file: Path
    word: str  # required, optional
    path: Path
    words: tuple[str, ...]
    refused: tuple[str, ...] = ()  # why words, or the file that conf= names, are not accepted


@dataclass(frozen=True, slots=True)
class PlugStack:
    """plugstack.conf with what it includes; `library` is the one that our first line names."""

    files: tuple[Path, ...]
    lines: tuple[StackLine, ...]
    library: Library | None


@dataclass(frozen=True, slots=True)
class Script:
    """A file that slurm.conf names in Prolog, Epilog or EpilogSlurmctld, or that we run."""

    key: str
    entry: str  # as slurm.conf has it; a pattern may give several files
    files: tuple[FileFacts, ...]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What slurmd runs around each job."""

    ours: tuple[Script, ...]  # the scripts that the SPANK plugin runs
    named: tuple[Script, ...]  # Prolog and Epilog of slurm.conf
    slurmd_has_plugin: Fact[bool]  # the running slurmd has loaded the SPANK plugin


@dataclass(frozen=True, slots=True)
class Place:
    """A directory below the run directory, and the file system that it is on."""

    file: FileFacts
    kind: str = "tmpfs"
    options: frozenset[str] = frozenset()
    size_bytes: int = 0
    inodes: int = 0
    is_mount: bool = False


@dataclass(frozen=True, slots=True)
class RunDir:
    """The run directory by the names of its parts; the empty name is the directory itself."""

    places: Mapping[str, Place]
    prom_gid: Fact[int]  # the group that prom/ must have


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as systemd has it."""

    name: str
    load: str
    active: str
    enabled: str
    user: str = ""
    program: str = ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python of the agent's command; `problem` is what it said when it was tried."""

    path: str
    version: Release | None
    problem: str


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent of this node; `note`: what it says of itself, None: nothing."""

    status: NodeStatus
    own_age_s: float | None  # of the file with its own series
    oldest_ended_s: float | None  # for how long the oldest ended job has waited
    unit: Unit | None  # None: this host has no systemd
    python: Interpreter | None  # None: the agent's command is not known
    note: Fact[Note | None]


@dataclass(frozen=True, slots=True)
class Exporter:
    """A running node_exporter."""

    pid: int
    reads_textfiles: bool
    directories: tuple[str, ...]
    may_read: bool  # its account may read the published files
    url: str  # empty: it speaks TLS


@dataclass(frozen=True, slots=True)
class Page:
    """What /metrics has of us, from node_exporter or from the agent's own endpoint."""

    url: str
    last_pass_age_s: float | None  # None: it has no series of the agent
    scrape_error: bool


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Who shows the published series."""

    exporters: tuple[Exporter, ...]
    pages: tuple[Fact[Page], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a Prometheus has of this node's agent; None: no series of it."""

    url: str
    node: str
    last_pass_age_s: float | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of this node, and what the agent needs to read their counters."""

    count: int
    nvml: str  # path of the library; empty: there is none
    has_bindings: Fact[bool]


@dataclass(frozen=True, slots=True)
class Enroot:
    """Our two files for Enroot; `mounts`: the paths of the host that containers get as they are."""

    fstab: FileFacts
    hook: FileFacts
    mounts: tuple[Path, ...]
    wanted: Mapping[str, Path]  # by setting: what must be there inside


@dataclass(frozen=True, slots=True)
class Security:
    """SELinux."""

    enforcing: bool
    denials: Fact[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Storage:
    """A directory on shared storage, tried as the service account.

    `problem`: why nothing can be written there; `errno`: the system's number for it, 0: none.
    `uid`: the account's.
    """

    file: FileFacts
    account: str
    uid: int | None  # None: there is no such account here
    problem: Fact[str]
    has_acl: Fact[bool]
    errno: int = 0

    @property
    def is_full(self) -> bool:
        return self.errno in (ENOSPC, EDQUOT)


@dataclass(frozen=True, slots=True)
class Controller:
    """The service beside slurmctld; `set_up`: something of it was found on this host."""

    set_up: bool
    epilog: Script | None  # ours in EpilogSlurmctld
    folders: Mapping[str, FileFacts]
    slurm_uid: int | None
    slurm_gids: tuple[int, ...]
    account_gids: tuple[int, ...]
    service: Fact[ServiceStatus]
    age_s: float
    failed: Fact[int]
    unentered: Fact[tuple[int, float]]  # reports not in the index, and the age (s) of the oldest
    unit: Unit | None
    timer: Unit | None
    note: Fact[Note | None]  # what it says of itself; None: nothing
    uncounted: Fact[int]  # ends without room in the queue that the service has not counted yet


@dataclass(frozen=True, slots=True)
class JobProcess:
    """A process of a job."""

    pid: int
    environ: Mapping[str, str]  # only variables that matter here
    nccl: str = ""  # path of the NCCL library that it has loaded
    rccl: str = ""
    profiler: str = ""  # path of our plugin that it has loaded
    nccl_version: Version | None = None
    sees_profiler: bool = True  # the file that NCCL_PROFILER_PLUGIN names exists in its view
    sees_raw: bool = True
    writes_raw: bool = True
    conf_lines: tuple[str, ...] = ()  # of NCCL's configuration files, that matter here
    image_sets: tuple[str, ...] = ()  # files of the image that set NCCL_PROFILER_PLUGIN


@dataclass(frozen=True, slots=True)
class JobBox:
    """What a process's box says."""

    name: str
    nccl: str
    silent: str
    timing: str
    enqueued: int
    followed: int  # operations of which any event of a kernel came
    age_s: float  # since its first communicator was made


@dataclass(frozen=True, slots=True)
class Job:
    """A job on this node."""

    job_id: int
    directory: FileFacts
    manifest_refused: str
    processes: tuple[JobProcess, ...]
    boxes: Fact[tuple[JobBox, ...]]
    disabled: bool
    fill_trouble: str


@dataclass(frozen=True, slots=True)
class ImageFile:
    """Lines in a file of an image that set variables which matter here."""

    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image; `nccl` and `rccl` are libraries by their path inside it."""

    root: Path
    glibc: Release | None
    musl: bool
    machine: int | None
    needs_glibc: Release
    host_machine: int
    sets: tuple[ImageFile, ...]
    nccl: Mapping[str, Version | None] = field(default_factory=dict)
    rccl: tuple[str, ...] = ()
    own_profiler: str = ""
    has_zlib: bool = True
    not_scanned: tuple[str, ...] = ()  # NCCL libraries beyond what is read of one image


@dataclass(frozen=True, slots=True)
class SetUp:
    """What `setup ROLE --apply` would do here, by role; a role that is set up has no entry."""

    has_site_file: bool
    todo: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was read; what a role does not need was not read."""

    settings: Settings
    slurm: Fact[Slurm] = NOT_READ
    plugstack: Fact[PlugStack] = NOT_READ
    profiler: Fact[Library] = NOT_READ
    hooks: Fact[Hooks] = NOT_READ
    run_dir: Fact[RunDir] = NOT_READ
    agent: Fact[Agent] = NOT_READ
    monitoring: Fact[Monitoring] = NOT_READ
    scrape: Fact[Scrape | None] = None  # None: no Prometheus was named
    gpus: Fact[Gpus] = NOT_READ
    enroot: Fact[Enroot] = NOT_READ
    nccl: Fact[Mapping[str, Version | None]] = NOT_READ  # of this host, by path
    security: Fact[Security] = NOT_READ
    clock_ahead_s: Fact[float] = NOT_READ
    reports: Fact[Storage] = NOT_READ
    store: Fact[Storage] = NOT_READ
    spool: Fact[Storage] = NOT_READ  # the queue's file system, tried as SlurmUser
    objects: Fact[str | None] = NOT_READ  # what an object store refuses; None: the site has none
    controller: Fact[Controller] = NOT_READ
    job: Fact[Job] = NOT_READ
    image: Fact[Image] = NOT_READ
    setup: Fact[SetUp] = NOT_READ
