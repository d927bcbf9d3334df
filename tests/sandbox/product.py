"""Putting the product into a cluster: its files under the state directory, its hooks into Slurm."""

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.sandbox.config import plugstack_conf, replace_text
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import REPO, Layout
from tests.sandbox.processes import DAEMON_ENV

SPANK = "spank_nccl_inspector.so"
HOOK = "50-nccl-inspector.sh"
_LIB = "usr/lib/nccl-inspector"
# What plays NCCL, CUDA, a user's own profiler and NVIDIA's, where job users can reach it.
_TOOLS = ("nccl-standin", "fakecuda/libcuda.so.1", "recorder.so", "nvidia-standin.so")


def install(layout: Layout) -> None:
    """`make install` below the cluster's root, which builds what is older than its source.

    The environment is a fresh one: a make that runs us must not pass its variables on.

    Raises:
        ClusterError: make failed; with its last words.
    """
    argv = ["make", "--silent", "install", f"DESTDIR={layout.product_root}"]
    if layout.tree:
        argv.append(f"SLURM_INCLUDE={layout.tree}/usr/include")
        _write_program(layout.own_program)
    with (REPO / "Makefile").open() as lock:  # two sessions must not build at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            argv, cwd=REPO, env=DAEMON_ENV, capture_output=True, text=True, timeout=300,
            check=False, umask=0o022,
        )  # fmt: skip
    if done.returncode != 0:
        raise ClusterError(f"make install: {'; '.join(done.stderr.strip().splitlines()[-3:])}")


def _write_program(path: Path) -> None:
    """The command nccl-inspector as the machines' own Python runs it from our source."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "#!/usr/bin/python3\n"
        "import sys\n"
        f"sys.path.insert(0, {str(REPO / 'python')!r})\n"
        "from nccl_inspector.cli import main\n"
        "sys.exit(main())\n"
    )
    path.chmod(0o755)


def install_tools(layout: Layout) -> None:
    """Copy the stand-ins for NCCL and CUDA below the cluster's root, as far as they are built."""
    layout.tools.mkdir(exist_ok=True)
    layout.tools.chmod(0o755)
    for name in _TOOLS:
        source = REPO / "build" / name
        if source.exists():
            target = layout.tools / source.name
            part = target.with_name(f".{target.name}.part")
            shutil.copyfile(source, part)
            part.chmod(0o755)
            part.replace(target)


def set_plugstack(layout: Layout, words: tuple[str, ...]) -> None:
    """Give the SPANK plugin these words; commands and steps that start from now on see them."""
    spank = layout.product_root / _LIB / SPANK
    text = plugstack_conf(spank if spank.exists() else None, layout.product_conf, words)
    replace_text(layout.root / "etc" / "plugstack.conf", text)


def hook(layout: Layout, kind: str) -> Path:
    """What the SPANK plugin runs as `prolog` or `epilog`: a link to the product's script."""
    return layout.hooks / kind / HOOK


def set_hooks(layout: Layout, *, on: bool) -> None:
    """Put the product's prolog and epilog around jobs, or take them away, from now on."""
    for kind in ("prolog", "epilog"):
        # A pattern in slurm.conf that matches nothing is a failed prolog, and drains the node.
        nothing = layout.root / "etc" / f"{kind}.d" / "00-nothing"
        if not nothing.exists():
            nothing.symlink_to("/bin/true")
        script = layout.product_root / _LIB / kind / HOOK
        link = hook(layout, kind)
        if not (on and script.exists()):
            link.unlink(missing_ok=True)
        elif not link.is_symlink():
            # Never out and in again: a job that ends in between would have no epilog.
            link.symlink_to(script)
