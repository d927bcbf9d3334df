# SPDX-License-Identifier: Apache-2.0
"""Enroot's start of a container in a real user and mount namespace, and a stand-in for it.

The stand-in does what Enroot 4.1.2 does around our files: the image's variables, environ.d, --env;
a fresh tmpfs on /run; hooks, of which one that fails ends it; the hooks' mounts, then mounts.d; the
root read-only; and in the container only the variables of its own list.
"""

import os
import subprocess
from pathlib import Path

from tests.support.make_install import make

HOOK = "hooks.d/50-nccl-inspector.sh"
JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "3",
    "NCCL_PROFILER_PLUGIN": "/usr/lib/nccl-inspector/libnccl-profiler-inspector.so",
    "NCCL_INSPECTOR_RUN_DIR": "/run/nccl-inspector/jobs/77/raw",
}
MARKER = {
    "NCCL_INSPECTOR_SET_BY_SLURM": "77 NCCL_PROFILER_PLUGIN:0 NCCL_INSPECTOR_RUN_DIR:0",
}
# A node's file systems, in a mount namespace of their own; then the container, as the job's user.
NODE = """
    mount -t tmpfs none /run && mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work || exit 77
    layer=lowerdir=/usr/lib,upperdir=/mnt/up,workdir=/mnt/work
    mount -t overlay -o $layer none /usr/lib || exit 77
    if [ -n "$INSTALLED" ]; then
        mkdir -p /usr/lib/nccl-inspector /run/nccl-inspector
        touch /usr/lib/nccl-inspector/libnccl-profiler-inspector.so
        mount -t tmpfs -o nosuid,nodev,noexec none /run/nccl-inspector
        mkdir -p /run/nccl-inspector/control /run/nccl-inspector/jobs/77/raw
        chown 65534:65534 /run/nccl-inspector/jobs/77/raw
        chmod 700 /run/nccl-inspector/jobs/77/raw
    fi
    run() { setpriv --reuid 65534 --regid 65534 --clear-groups -- "$@"; }
"""
STANDIN = r"""
    set -eu
    export ENROOT_ROOTFS=$PLACE/data/image
    export ENROOT_ENVIRON=$PLACE/rt/env ENROOT_MOUNTS=$PLACE/rt/fstab
    mount --bind "$ENROOT_ROOTFS" "$ENROOT_ROOTFS"
    { cat "$ENROOT_ROOTFS/etc/environment"; cat "$PLACE"/etc/environ.d/*.env; } 2>/dev/null \
        >"$ENROOT_ENVIRON" || :
    if [ -n "$TOLD" ]; then echo "$TOLD" >>"$ENROOT_ENVIRON"; fi
    sed -i -e 's/^[[:space:]]*//' -e '/^[A-Za-z_][A-Za-z0-9_]*=/!d' "$ENROOT_ENVIRON"
    mount -t tmpfs none "$ENROOT_ROOTFS/run"
    mount --rbind /proc "$ENROOT_ROOTFS/proc"
    : >"$ENROOT_MOUNTS"
    for hook in "$PLACE"/etc/hooks.d/*.sh; do "$hook" || exit 3; done
    cat "$ENROOT_MOUNTS" "$PLACE"/etc/mounts.d/50-*.fstab | while read -r from to _ options _; do
        case $from in '#'* | '') continue ;; esac
        case $options in *nofail*) fail=: ;; *) fail='exit 4' ;; esac
        case $options in
        *x-create=dir*) mkdir -p "$ENROOT_ROOTFS$to" 2>/dev/null || $fail ;;
        *x-create=auto*) [ ! -e "$from" ] || mkdir -p "$ENROOT_ROOTFS$to" 2>/dev/null || $fail ;;
        esac
        flags=nosuid,nodev
        case $options in *noexec*) flags=$flags,noexec ;; esac
        case $options in *,ro,*) flags=$flags,ro ;; esac
        { mount --bind "$from" "$ENROOT_ROOTFS$to" &&
            mount -o "remount,bind,$flags" "$ENROOT_ROOTFS$to"; } 2>/dev/null || $fail
    done
    mount -o remount,bind,ro,nosuid,nodev "$ENROOT_ROOTFS"
    exec "$ENROOT_ROOTFS/bin/busybox" sh -c '
        IFS="
"; set -f; set -- $(cat "$ENROOT_ENVIRON"); exec env -i PATH=/bin "$@" \
            chroot "$ENROOT_ROOTFS" /bin/busybox sh -c "$SCRIPT"'
"""
REAL = r"""
    mkdir -p "$PLACE/etc/mounts.d"
    {
        echo '/proc /proc none x-create=dir,rbind,rw,nosuid,nodev,noexec,rslave 0 -1'
        echo 'tmpfs /run tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave 0 -1'
    } >"$PLACE/etc/mounts.d/10-system.fstab"
    run env ENROOT_SYSCONF_PATH="$PLACE/etc" ENROOT_DATA_PATH="$PLACE/data" HOME="$PLACE/rt" \
        ENROOT_RUNTIME_PATH="$PLACE/rt" ENROOT_CACHE_PATH="$PLACE/rt/cache" ENROOT_LOGIN_SHELL=n \
        enroot start ${TOLD:+--env "$TOLD"} image /bin/busybox sh -c "$SCRIPT"
"""


class Container:
    """An image of busybox, and Enroot's configuration with the product's files."""

    def __init__(self, place: Path, kind: str) -> None:
        self.place, self.kind = place, kind
        self.image = place / "data" / "image"
        for name in ("bin", "etc", "proc", "run", "usr/lib", "dev", "sys", "tmp"):
            (self.image / name).mkdir(parents=True)
        busybox = Path("/bin/busybox").read_bytes()
        for name in ("busybox", "sh"):
            (self.image / "bin" / name).write_bytes(busybox)
            (self.image / "bin" / name).chmod(0o755)
        (place / "rt").mkdir()
        (place / "etc").mkdir()
        make("install-enroot", f"DESTDIR={place}/sys", stage=place / "stage")
        for name in ("hooks.d", "mounts.d"):
            (place / "sys" / "etc" / "enroot" / name).rename(place / "etc" / name)
        (place / "etc" / "environ.d").mkdir()

    def start(
        self, script: str, *, env: dict[str, str], installed: bool = True, told: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in the container; `told`: NAME=value as by --env. Status 77: no mounts."""
        for path in (self.place, *self.place.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        self.place.chmod(0o755)
        own = 'run unshare --user --map-root-user --mount --propagation slave -- sh -c "$STANDIN"'
        words = NODE + (REAL if self.kind == "enroot" else own)
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", words],
            env={
                "PATH": os.environ["PATH"],
                "PLACE": str(self.place),
                "SCRIPT": script,
                "STANDIN": STANDIN,
                "TOLD": told,
                "INSTALLED": "yes" if installed else "",
                **env,
            },
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
