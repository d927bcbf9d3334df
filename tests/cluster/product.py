"""Putting the product into a cluster: its files under the state directory, its hooks into Slurm."""

import shutil

from tests.cluster.config import plugstack_conf, replace_text
from tests.cluster.layout import REPO, Layout

SPANK = "spank_nccl_inspector.so"
PROFILER = "libnccl-profiler-inspector.so"
HOOK = "50-nccl-inspector.sh"
_LIB = "usr/lib/nccl-inspector"
# From the repository: to under the product's root, the mode.
_FILES = {
    f"build/{PROFILER}": (f"{_LIB}/{PROFILER}", 0o755),
    f"build/{SPANK}": (f"{_LIB}/{SPANK}", 0o755),
    f"prolog/{HOOK}": (f"{_LIB}/prolog/{HOOK}", 0o755),
    f"epilog/{HOOK}": (f"{_LIB}/epilog/{HOOK}", 0o755),
}


def install(layout: Layout) -> list[str]:
    """Copy what is built into the cluster's root and return the parts that are not there yet."""
    absent = []
    for source, (target, mode) in _FILES.items():
        destination = layout.product_root / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        if not (REPO / source).exists():
            absent.append(source)
            continue
        part = destination.with_name(f".{destination.name}.part")
        shutil.copyfile(REPO / source, part)
        part.chmod(mode)
        part.replace(destination)
    return absent


def set_plugstack(layout: Layout, words: tuple[str, ...]) -> None:
    """Give the SPANK plugin these words; commands and steps that start from now on see them."""
    spank = layout.product_root / _LIB / SPANK
    text = plugstack_conf(spank if spank.exists() else None, layout.product_conf, words)
    replace_text(layout.root / "etc" / "plugstack.conf", text)


def set_hooks(layout: Layout, *, on: bool) -> None:
    """Put the product's prolog and epilog around jobs, or take them away, from now on."""
    for kind in ("prolog", "epilog"):
        script = layout.product_root / _LIB / kind / HOOK
        link = layout.root / "etc" / f"{kind}.d" / HOOK
        link.unlink(missing_ok=True)
        if on and script.exists():
            link.symlink_to(script)
