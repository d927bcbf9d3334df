# SPDX-License-Identifier: Apache-2.0
"""The root directory of a host's image, with real account files, Slurm's and the package's."""

from pathlib import Path

from click.testing import CliRunner

from nccl_inspector.cli import cli
from nccl_inspector.errors import InspectorError
from tests.support.repository import PACKAGING

ACCOUNTS = """root:x:0:0:root:/root:/bin/bash
slurm:x:64030:64030::/nonexistent:/usr/sbin/nologin
"""
GROUP = "root:x:0:\nslurm:x:64030:\n"
SLURM_CONF = "ClusterName=alpha\nSlurmUser=slurm\n"
SITE = """
[slurm]
words = "default=prom interval=30s"
[account]
uid = 642
[settings]
report_dir = "/shared/reports"
store_dir = "/shared/store"
"""


def make_image(root: Path, slurm_conf: str = SLURM_CONF) -> Path:
    """Return a new image below `root`, in which nothing of ours is set up."""
    for folder in ("etc/slurm", "usr/lib/nccl-inspector", "usr/lib/systemd/system", "shared"):
        (root / folder).mkdir(parents=True)
    (root / "etc/passwd").write_text(ACCOUNTS)
    (root / "etc/group").write_text(GROUP)
    for name in ("shadow", "gshadow"):
        (root / "etc" / name).write_text("root:*::::::\n")
    (root / "etc/slurm/slurm.conf").write_text(slurm_conf)
    library = root / "usr/lib/nccl-inspector"
    (library / "spank_nccl_inspector.so").write_bytes(b"")
    (library / "tmpfiles-controller.conf").write_bytes(
        (PACKAGING / "tmpfiles-controller.conf").read_bytes()
    )
    for unit in [*PACKAGING.glob("*.service"), *PACKAGING.glob("*.mount")]:
        (root / "usr/lib/systemd/system" / unit.name).write_bytes(unit.read_bytes())
    return root


def tree(root: Path) -> dict[str, bytes]:
    """Return what is below a directory, with its content; not /var, where the journal is."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink()).encode()
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[f"{name}/"] = b""
    return {name: data for name, data in found.items() if not name.startswith("var/")}


def setup(root: Path, role: str, *words: str, site: str = SITE) -> tuple[int, str]:
    """Run the command on an image; return its exit status and all that it printed."""
    path = root.parent / "site.toml"
    path.write_text(site)
    done = CliRunner().invoke(
        cli, ["setup", role, "--site", str(path), "--root", str(root), *words]
    )
    if isinstance(done.exception, InspectorError):
        return 1, f"nccl-inspector: {done.exception}\n"
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output
