# SPDX-License-Identifier: Apache-2.0
"""The file systems that a node gets from the package: helper and units, by the real mount."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.marks import as_root
from tests.support.repository import PACKAGING

pytestmark = as_root
QUOTA = "usrquota,usrquota_block_hardlimit=256k,usrquota_inode_hardlimit=10"
NO_QUOTA = "mnt has no quota: this kernel has none for tmpfs\n"
UNITS = {
    name: (PACKAGING / f"run-nccl\\x2dinspector{name}.mount").read_text("ascii")
    for name in ("", "-prom", "-control")
}


def value(unit: str, key: str) -> str:
    (found,) = re.findall(f"^{key}=(.*)$", unit, re.MULTILINE)
    return str(found)


def mount(place: Path, options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Mount `mnt` as its unit would where the helper is installed, then run a shell's words there.

    All in a mount namespace that ends with it; status 77: that cannot be had.
    """
    (place / "mnt").mkdir()
    (place / "sbin").mkdir()
    words = f"""
        layer=lowerdir=/usr/sbin,upperdir={place}/sbin/upper,workdir={place}/sbin/work
        mount -t tmpfs none {place}/sbin && mkdir {place}/sbin/upper {place}/sbin/work &&
            mount -t overlay -o $layer none /usr/sbin || exit 77
        cp {PACKAGING}/mount.nccl-inspector /usr/sbin/
        cd {place} && mount -t nccl-inspector -o {options} tmpfs {place}/mnt || exit
        cd mnt
        {script}
    """
    argv = ["env", "LC_ALL=C", "unshare", "--mount", "--propagation", "private", "--", "sh", "-c"]
    argv.append(words)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 77:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    return done


def as_user(words: str) -> str:
    return f"setpriv --reuid 65534 --regid 65534 --clear-groups -- sh -c '{words}'"


def test_with_or_without_quota_in_the_kernel_there_is_a_tmpfs_with_its_options(
    tmp_path: Path,
) -> None:
    options = f"size=1m,nr_inodes=50,{QUOTA},mode=0755,nosuid,nodev,noexec"
    done = mount(tmp_path, options, f"grep ' {tmp_path}/mnt ' /proc/mounts")
    assert done.returncode == 0, done.stderr
    _, _, kind, found, *_ = done.stdout.split()
    assert kind == "tmpfs"
    assert {"nosuid", "nodev", "noexec", "size=1024k", "nr_inodes=50"} <= set(found.split(","))
    assert ("usrquota" in found) != (NO_QUOTA in done.stderr)


def test_where_the_kernel_has_quotas_a_user_leaves_room_for_others(tmp_path: Path) -> None:
    script = f"""
        chmod 1777 .
        {as_user("head -c 1m /dev/zero >much; seq 40 | xargs -n1 touch")} 2>/dev/null
        stat -c %s much; ls | wc -l
        head -c 400k /dev/zero >ours && stat -c %s ours
    """
    done = mount(tmp_path, f"size=1m,nr_inodes=50,{QUOTA}", script)
    if NO_QUOTA in done.stderr:
        pytest.skip("this kernel has no quota for tmpfs")
    assert done.stdout.split() == [str(256 << 10), "10", str(400 << 10)], done.stderr


def test_an_option_that_is_wrong_mounts_nothing(tmp_path: Path) -> None:
    for number, options in enumerate((f"size=1m,bogus=1,{QUOTA}", "size=1m,bogus=1")):
        place = tmp_path / str(number)
        place.mkdir()
        done = mount(place, options, "")
        assert done.returncode != 0
        # As mount of Debian 12 says it, and as that of 13 does.
        assert re.search("bad option|Unknown parameter 'bogus'", done.stderr), done.stderr


def test_the_units_options_mount_and_users_write_into_none_of_the_agents(tmp_path: Path) -> None:
    for name, unit in UNITS.items():
        assert value(unit, "Where") == f"/run/nccl-inspector{name.replace('-', '/')}"
        place = tmp_path / f"of{name}"
        place.mkdir()
        done = mount(place, value(unit, "Options"), as_user("touch x; mkdir y"))
        assert done.stderr.count("Permission denied") == 2, done.stderr


def test_both_services_want_every_mount_and_come_after_them() -> None:
    mounts = [f"run-nccl\\x2dinspector{name}.mount" for name in UNITS]
    for name in ("agent", "collect"):
        unit = (PACKAGING / f"nccl-inspector-{name}.service").read_text("ascii")
        assert [value(unit, "Requires"), *value(unit, "Wants").split()] == mounts
        assert value(unit, "After").split()[:3] == mounts
    assert value(UNITS[""], "Wants").split() == mounts[1:]
