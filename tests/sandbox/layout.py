"""Where one sandbox cluster lives: its directory, its loopback network, its ports, its options."""

import json
import os
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.sandbox.errors import ClusterError

HEAD = "head"
NODES = ("n1", "n2", "n3", "n4")
GPUS_PER_NODE = 8
# Nodes with adapters in sysfs and the stand-in for NVML; on the others both are missing.
HARDWARE_NODES = ("n1", "n2", "n3")
JOB_USER = "nccl-demo"
OTHER_USER = "nccl-other"
DAEMON_USER = "nobody"  # of node_exporter and Prometheus
REPORT_USER = "nccl-reports"  # not the product's own account: `setup` may have to make that
REPO = Path(__file__).resolve().parents[2]
RUN_DIR = "/run/nccl-inspector"

DESCRIPTION = "cluster.json"
_PATH_WORDS = re.compile(r"/[A-Za-z0-9._/-]+")
PORTS = 11  # of one cluster
_MAX_PATH = 80  # munge's socket must fit into sun_path (108 bytes)


def _tree_of_session() -> str:
    return os.environ.get("NCCL_INSPECTOR_SLURM_TREE", "")


@dataclass(frozen=True, slots=True)
class Options:
    """What a cluster starts with; the first four can be changed while it runs.

    tree: the Debian suite whose Slurm runs, from a tree of its own; empty: the host's Slurm.
    host_prefix: the machine of NodeName n1 has the host name <prefix>n1.
    prolog_flags: slurm.conf's PrologFlags; empty: none.
    slurm_lines: lines of slurm.conf that replace those of the same key, or come at the end.
    etc_files: name and text of further files beside slurm.conf (`job_submit.lua`).
    accounting: with slurmdbd, on a MariaDB of the cluster's own.
    """

    prolog: bool = True
    agents: bool = True
    monitoring: bool = True
    plugstack: tuple[str, ...] = ()
    tree: str = field(default_factory=_tree_of_session)
    host_prefix: str = ""
    prolog_flags: str = "Alloc"
    slurm_lines: tuple[str, ...] = ()
    etc_files: tuple[tuple[str, str], ...] = ()
    accounting: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """One cluster. `net`: first three bytes of its loopback /24; `port`: its lowest port.

    slurm: the version that runs, `22.05.8`. tree: the root of its machines; None: the host's.
    """

    root: Path
    net: str
    port: int
    options: Options
    slurm: str
    tree: Path | None = None

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.root / "run" / "munge.sock"

    @property
    def product_conf(self) -> Path:
        return self.root / "etc" / "nccl-inspector" / "nccl-inspector.conf"

    @property
    def product_root(self) -> Path:
        """The DESTDIR into which the product is installed."""
        return self.root / "root"

    @property
    def hooks(self) -> Path:
        """The setting `hooks`: links to the product's hooks, which a test may take away."""
        return self.root / "etc" / "hooks"

    @property
    def tools(self) -> Path:
        """The stand-ins for NCCL and CUDA."""
        return self.root / "tools"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def release(self) -> tuple[int, int]:
        """Year and month of the Slurm release, (22, 5)."""
        year, month = self.slurm.split(".")[:2]
        return int(year), int(month)

    @property
    def slurm_cflags(self) -> list[str]:
        """What the host's compiler needs to find the headers of this Slurm, once it is built."""
        return [f"-I{REPO}/build/slurm-{self.slurm}/include"] if self.tree else []

    @property
    def own_program(self) -> Path:
        """In a tree: the command nccl-inspector, by the tree's Python and our source."""
        return self.root / "bin" / "nccl-inspector"

    def host_name(self, machine: str) -> str:
        """What `uname -n` says on a machine."""
        return machine if machine == HEAD else f"{self.options.host_prefix}{machine}"

    def address(self, machine: str) -> str:
        """The loopback address of head or of a node."""
        return f"{self.net}.{1 if machine == HEAD else 11 + NODES.index(machine)}"

    def slurmctld_port(self) -> int:
        return self.port

    def slurmd_port(self, node: str) -> int:
        return self.port + 1 + NODES.index(node)

    def exporter_port(self, node: str) -> int:
        return self.port + 5 + NODES.index(node)

    def prometheus_port(self) -> int:
        return self.port + 9

    def slurmdbd_port(self) -> int:
        return self.port + 10

    def exporter_url(self, node: str) -> str:
        return f"http://{self.address(node)}:{self.exporter_port(node)}"

    def prometheus_url(self) -> str:
        return f"http://{self.address(HEAD)}:{self.prometheus_port()}"

    def private(self, machine: str) -> Path:
        """Mount point of the machine's own tmpfs, in its namespace only: marks its processes."""
        return self.root / "machines" / machine / "private"

    def sys(self, node: str) -> Path:
        """The tree of which `class` is the node's /sys/class."""
        return self.root / "machines" / node / "sys"

    def nvml(self, node: str) -> Path:
        """The directory of the node's NVML and of what that says."""
        return self.root / "machines" / node / "nvml"

    def listeners(self) -> list[tuple[str, int]]:
        """Every address and port that the cluster listens on."""
        head = self.address(HEAD)
        ports = self.slurmctld_port(), self.prometheus_port(), self.slurmdbd_port()
        pairs = [(head, port) for port in ports]
        for node in NODES:
            pairs.append((self.address(node), self.slurmd_port(node)))
            pairs.append((self.address(node), self.exporter_port(node)))
        return pairs


def default_root() -> Path:
    """$NCCL_INSPECTOR_CLUSTER_DIR, else a directory of this uid under /tmp."""
    chosen = os.environ.get("NCCL_INSPECTOR_CLUSTER_DIR")
    return Path(chosen) if chosen else Path(f"/tmp/nccl-inspector-cluster-{os.getuid()}")


def check_root(root: Path) -> None:
    """Refuse a state directory that a cluster must not fill and later delete.

    Its name is predictable, so another user may have put something there first.

    Raises:
        ClusterError: a link, somebody else's directory, or one with other things in it.
    """
    if not _PATH_WORDS.fullmatch(str(root)) or len(str(root)) > _MAX_PATH:
        raise ClusterError(
            f"{root}: need an absolute path of at most {_MAX_PATH} letters, digits and ._-"
        )
    try:
        found = root.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ClusterError(f"{root}: not a directory that only we can write")
    if not (root / DESCRIPTION).exists() and any(root.iterdir()):
        raise ClusterError(
            f"{root}: not empty and not a cluster's state directory; choose another one"
        )


def check_reachable(root: Path) -> None:
    """Refuse a directory in which job users could not write their output.

    Raises:
        ClusterError: they may not pass through one of its parents.
    """
    for parent in root.parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise ClusterError(f"{parent}: job users may not pass through it; choose another place")


def save(layout: Layout) -> None:
    """Write the description: the first file in the state directory, `down` goes by it."""
    text = {
        "net": layout.net,
        "port": layout.port,
        "options": asdict(layout.options),
        "slurm": layout.slurm,
        "tree": str(layout.tree) if layout.tree else None,
    }
    part = layout.root / f"{DESCRIPTION}.part"
    part.write_text(json.dumps(text) + "\n")
    part.replace(layout.root / DESCRIPTION)


def _frozen(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def load(root: Path) -> Layout | None:
    """The cluster that `root` describes, running or not; None when there is none.

    Raises:
        ClusterError: the description cannot be read.
    """
    path = root / DESCRIPTION
    try:
        text = json.loads(path.read_text())
        words = {key: _frozen(value) for key, value in text["options"].items()}
        tree = Path(text["tree"]) if text["tree"] else None
        return Layout(root, text["net"], text["port"], Options(**words), text["slurm"], tree)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ClusterError(f"{path}: not a cluster's description: {err}") from err
