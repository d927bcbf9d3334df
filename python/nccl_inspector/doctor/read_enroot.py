# SPDX-License-Identifier: Apache-2.0
"""Our two files for Enroot: what they mount into containers, and what must be there."""

from pathlib import Path

from nccl_inspector.doctor.facts import Enroot, FileFacts
from nccl_inspector.doctor.files import file_facts, read_text
from nccl_inspector.settings.config import Config

FSTAB = Path("/etc/enroot/mounts.d/50-nccl-inspector.fstab")
HOOK = Path("/etc/enroot/hooks.d/50-nccl-inspector.sh")


def _mounts(fstab: FileFacts) -> tuple[Path, ...]:
    """Return what is mounted at its own path."""
    if fstab.problem:
        return ()
    lines = [line.split("#", 1)[0].split() for line in read_text(fstab.path).splitlines()]
    return tuple(Path(words[0]) for words in lines if len(words) > 2 and words[0] == words[1])


def read_enroot(config: Config, fstab: Path = FSTAB, hook: Path = HOOK) -> Enroot:
    """Return both files, and what jobs' containers need by these settings.

    Raises:
        OSError: a file is there and cannot be read.
    """
    wanted = {"run_dir": config.run_dir / "control"}
    if config.profiler.is_absolute():  # else the image's loader finds it, or does not
        wanted["profiler"] = config.profiler
    file = file_facts(fstab)
    return Enroot(file, file_facts(hook), _mounts(file), wanted)
