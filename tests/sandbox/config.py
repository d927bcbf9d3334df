"""The text of every configuration file of a cluster (pure), and writing them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from tests.sandbox.layout import GPUS_PER_NODE, HARDWARE_NODES, HEAD, NODES, REPORT_USER, Layout
from tests.support import fake_hardware

GPU_MODEL = "NVIDIA H100 80GB HBM3"
_FIRST_BUS = 0x10


def slurm_conf(layout: Layout) -> str:
    """slurm.conf. The hooks in it are those of tests, the product's come by the SPANK plugin; they
    are patterns, so that a change of them needs no reconfiguration.
    """
    root = layout.root
    flags = layout.options.prolog_flags
    lines = [
        "ClusterName=sandbox",
        f"SlurmctldHost={HEAD}({layout.address(HEAD)})",
        f"SlurmctldPort={layout.slurmctld_port()}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # A requeued job waits until its credential is expired: seconds here instead of two minutes.
        f"AuthInfo=socket={layout.munge_socket},cred_expire=5",
        f"StateSaveLocation={root}/slurmctld",
        f"SlurmdSpoolDir={root}/machines/%n/spool",
        f"SlurmctldPidFile={root}/run/slurmctld.pid",
        f"SlurmdPidFile={root}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={root}/log/slurmctld.log",
        f"SlurmdLogFile={root}/log/slurmd-%n.log",
        # Not NoInAddrAny: slurmstepd could not call back an srun that listens on one address.
        "CommunicationParameters=NoCtldInAddrAny",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SlurmdParameters=config_overrides",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "ReturnToService=2",
        "JobAcctGatherType=jobacct_gather/none",
        # Only the backfill round starts heterogeneous jobs: each second here, not each half minute.
        "SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=1",
        "KillWait=5",
        "MinJobAge=300",
        f"PlugStackConfig={root}/etc/plugstack.conf",
        # Called for jobs that ask for mail; a test puts it there.
        f"MailProg={root}/etc/mailprog",
        f"Prolog={root}/etc/prolog.d/*",
        f"Epilog={root}/etc/epilog.d/*",
        "PrologEpilogTimeout=60",
        "GresTypes=gpu",
        *([f"PrologFlags={flags}"] if flags else []),
    ]
    for node in NODES:
        lines.append(
            f"NodeName={node} NodeHostname={layout.host_name(node)} NodeAddr={layout.address(node)}"
            f" Port={layout.slurmd_port(node)} CPUs=16 Boards=1 SocketsPerBoard=1"
            " CoresPerSocket=16 ThreadsPerCore=1 RealMemory=4000"
            f" Gres=gpu:h100:{GPUS_PER_NODE} State=UNKNOWN"
        )
    for partition, default in (("gpu", "YES"), ("cpu", "NO")):
        lines.append(
            f"PartitionName={partition} Nodes=ALL Default={default} MaxTime=60 State=UP"
            " OverSubscribe=NO"
        )
    if layout.options.accounting:
        lines += accounting_lines(layout)
    return "\n".join(merged(lines, layout.options.slurm_lines)) + "\n"


def accounting_lines(layout: Layout) -> list[str]:
    """What slurm.conf says of slurmdbd."""
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={layout.address(HEAD)}",
        f"AccountingStoragePort={layout.slurmdbd_port()}",
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_comment",
    ]


def slurmdbd_conf(layout: Layout) -> str:
    """slurmdbd.conf. MariaDB knows us by the uid at its socket, so there is no password."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        f"DbdHost={HEAD}",
        f"DbdAddr={layout.address(HEAD)}",
        f"DbdPort={layout.slurmdbd_port()}",
        "SlurmUser=root",
        f"LogFile={layout.root}/log/slurmdbd.log",
        f"PidFile={layout.root}/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join(lines) + "\n"


def merged(lines: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Lines of slurm.conf in which each change replaces the line of its key, or comes last.

    A change without a value takes the line out.
    """
    found = {_key(line): line for line in [*lines, *changes]}
    return [line for line in found.values() if not line.endswith("=")]


def _key(line: str) -> str:
    """What a line sets; each node and each partition has a line of its own."""
    name, _, value = line.partition("=")
    return f"{name}={value.split()[0]}" if name in ("NodeName", "PartitionName") else name


def gres_conf(layout: Layout) -> str:
    """gres.conf: eight devices a node, each node with files of its own."""
    lines = ["AutoDetect=off"]
    for node in NODES:
        files = f"{layout.root}/machines/{node}/dev/nvidia[0-{GPUS_PER_NODE - 1}]"
        lines.append(f"NodeName={node} Name=gpu Type=h100 File={files}")
    return "\n".join(lines) + "\n"


def plugstack_conf(spank: Path | None, conf: Path, words: Sequence[str]) -> str:
    """plugstack.conf; empty while there is no plugin, or every command would complain."""
    if spank is None:
        return ""
    return " ".join(["optional", str(spank), f"conf={conf}", *words]) + "\n"


def product_conf(layout: Layout, changes: Mapping[str, str]) -> str:
    """nccl-inspector.conf of the sandbox: quick intervals, reports inside the state directory."""
    settings = {
        "cluster": "sandbox",
        "interval": "1s",
        "agent_interval": "500ms",
        "report_dir": str(layout.reports),
        "report_user": REPORT_USER,
        "hooks": str(layout.hooks),
        "profiler": "/usr/lib/nccl-inspector/libnccl-profiler-inspector.so",
    }
    return "".join(f"{key} = {value}\n" for key, value in (settings | dict(changes)).items())


def prometheus_yml(layout: Layout) -> str:
    """prometheus.yml (JSON is YAML).

    Our series carry `cluster` themselves; the copy that honor_labels off makes of it is dropped.
    """
    targets = [
        {
            "targets": [f"{layout.address(node)}:{layout.exporter_port(node)}"],
            "labels": {"cluster": "sandbox", "instance": node},
        }
        for node in NODES
    ]
    job = {
        "job_name": "nccl-inspector",
        "honor_labels": False,
        "static_configs": targets,
        "metric_relabel_configs": [{"action": "labeldrop", "regex": "exported_cluster"}],
    }
    text = {
        "rule_files": [f"{layout.root}/etc/rules/*.yml"],
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [job],
    }
    return json.dumps(text, indent=1) + "\n"


def hosts(layout: Layout) -> str:
    """/etc/hosts of every machine of the cluster."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for machine in (HEAD, *NODES):
        names = dict.fromkeys((machine, layout.host_name(machine)))
        lines.append(f"{layout.address(machine)} {' '.join(names)}")
    return "\n".join(lines) + "\n"


def gpu_uuid(node: str, minor: int) -> str:
    """The UUID of a fake GPU: the same that tests/native/fakecuda gives in place of the driver."""
    raw, state = b"", 14695981039346656037  # FNV-1a
    for _ in range(2):
        for byte in f"{node}/{minor}".encode():
            state = (state ^ byte) * 1099511628211 % (1 << 64)
        raw += state.to_bytes(8, "little")
    return f"GPU-{UUID(bytes=raw)}"


def nvml_lines(node: str) -> list[str]:
    """What NVML says of the node's GPUs while all is well."""
    gpus = range(GPUS_PER_NODE)
    return [line for n in gpus for line in fake_hardware.gpu_lines(n, gpu_uuid(node, n))]


def gpu_bus_id(minor: int) -> str:
    """The PCI bus id of a fake GPU, as /proc spells it."""
    return f"0000:{_FIRST_BUS + minor:02x}:00.0"


def write_all(layout: Layout) -> None:
    """Write every file that daemons or users read; the plugin's are written with the product."""
    etc = layout.root / "etc"
    for name in ("nccl-inspector", "prolog.d", "epilog.d", "hooks/prolog", "hooks/epilog", "rules"):
        (etc / name).mkdir(parents=True, exist_ok=True)
    layout.slurm_conf.write_text(slurm_conf(layout))
    (etc / "gres.conf").write_text(gres_conf(layout))
    if layout.options.accounting:
        secret = etc / "slurmdbd.conf"
        secret.touch(mode=0o600)
        secret.write_text(slurmdbd_conf(layout))
    if layout.release >= (24, 11):  # else it looks for a cgroup v2 of its own, or ends
        (etc / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    for name, text in layout.options.etc_files:
        (etc / name).write_text(text)
    (etc / "plugstack.conf").write_text("")
    (etc / "prometheus.yml").write_text(prometheus_yml(layout))
    (etc / "hosts").write_text(hosts(layout))
    layout.product_conf.write_text(product_conf(layout, {}))
    key = etc / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(os.urandom(128))
    for node in NODES:
        _write_gpus(layout, node)
    for node in HARDWARE_NODES:
        fake_hardware.make_port(layout.sys(node), "mlx5_0")
        fake_hardware.make_port(layout.sys(node), "mlx5_1", link_layer="Ethernet")
        if fake_hardware.FAKE_NVML.exists():
            fake_hardware.write_nvml(layout.nvml(node), nvml_lines(node), GPUS_PER_NODE)


def _write_gpus(layout: Layout, node: str) -> None:
    """Devices for gres.conf and what becomes /proc/driver on the node."""
    own = layout.root / "machines" / node
    (own / "dev").mkdir(parents=True)
    null = Path("/dev/null").stat()
    for minor in range(GPUS_PER_NODE):
        device = own / "dev" / f"nvidia{minor}"
        os.mknod(device, null.st_mode, null.st_rdev)
        device.chmod(0o666)
        folder = own / "driver" / "nvidia" / "gpus" / gpu_bus_id(minor)
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t {GPU_MODEL}\n"
            f"GPU UUID: \t {gpu_uuid(node, minor)}\n"
            f"Bus Type: \t PCIe\n"
            f"Bus Location: \t {gpu_bus_id(minor)}\n"
            f"Device Minor: \t {minor}\n"
        )


def replace_text(path: Path, text: str) -> None:
    """Write beside, then rename: a reader sees the old or the new text."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.chmod(0o644)
    part.replace(path)
