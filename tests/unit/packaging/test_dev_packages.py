"""Setting up, or building packages, on a machine that lacks something says what, at once."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.sandbox import Options, host
from tests.support.repository import REPO

SCRIPT = REPO / "packaging" / "dev-packages.sh"


def run(status: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The script as an ordinary user, on a Debian that says this of every package."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own are closed to others
        stub = Path(folder) / "dpkg-query"
        stub.write_text(f"#!/bin/sh\nprintf '%s' '{status}'\n")
        stub.chmod(0o755)
        stub.parent.chmod(0o755)
        return subprocess.run(
            ["bash", "-s", *words],
            input=SCRIPT.read_text(),
            capture_output=True,
            text=True,
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
            user=65534 if os.geteuid() == 0 else None,
            cwd="/",
            check=False,
            timeout=20,
        )


def test_without_root_the_missing_packages_are_named_in_one_line() -> None:
    done = run("")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "as root on Debian 12 or 13: apt-get install" in done.stderr
    assert "slurm-wlm" in done.stderr
    assert not done.stdout


def test_no_package_is_named_by_the_release_of_what_is_in_it() -> None:
    """Such as libclang-rt-14-dev, which Debian 13 has not."""
    assert re.findall(r"\S+-\d+\S*", run("").stderr.partition("apt-get install")[2]) == []


def test_what_others_wait_for_is_installed_first_and_the_rest_is_named_too() -> None:
    assert run("", "first").stderr == run("", "test").stderr, "an ordinary user installs all of it"


def test_the_short_tests_install_no_other_compiler_and_no_service_of_long_ones() -> None:
    demo, test, everything = (
        set(run("", *word).stderr.split()) for word in (["demo"], ["test"], [])
    )
    assert demo < test < everything
    assert {"clang", "gcc-aarch64-linux-gnu", "swift-proxy", "mariadb-server-core", "lintian"} <= (
        everything - test
    )


def test_with_all_packages_there_is_nothing_to_say() -> None:
    done = run("installed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_demo_installs_what_its_cluster_needs_and_no_other_compiler_or_database() -> None:
    demo, everything = set(run("", "demo").stderr.split()), set(run("").stderr.split())
    spared = {"clang", "mariadb-server-core", "gcc-aarch64-linux-gnu", "lintian"}
    assert spared <= everything
    assert not spared & demo
    options = Options()
    needed = host.needed_programs(monitoring=options.monitoring, accounting=options.accounting)
    # slurm-wlm brings the first three; every Debian has passwd.
    brought = {"slurmctld", "slurmd", "slurm-client", "passwd"}
    assert set(needed.values()) <= demo | brought


APT = """#!/bin/sh
[ "$1" = install ] || exit 0
echo "$@" >>/mnt/installed
/usr/sbin/policy-rc.d; echo "$?" >/mnt/policy
for unit in first.service second.timer; do deb-systemd-helper enable "$unit"; done
"""
UNITS = {
    "kept.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
    "first.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
    "second.timer": "[Timer]\nOnBootSec=1\n[Install]\nWantedBy=timers.target\n",
}
ROOT = r"""
    set -e
    mount -t tmpfs none /mnt
    for dir in etc usr/sbin var/lib/systemd lib/systemd/system; do
        mkdir -p "/mnt/$dir/up" "/mnt/$dir/work"
        layers=lowerdir=/$dir,upperdir=/mnt/$dir/up,workdir=/mnt/$dir/work
        mount -t overlay -o "$layers" none "/$dir"
    done
    export DPKG_MAINTSCRIPT_PACKAGE=one
    rm -f /usr/sbin/policy-rc.d
    cp "$UNITS"/* /lib/systemd/system/
    deb-systemd-helper enable kept.service
    PATH=$STUBS:$PATH bash "$SCRIPT" "$WORD" >&2
    cat /mnt/installed >&2
    cat /mnt/policy
    ls /usr/sbin/policy-rc.d 2>/dev/null || :
    find /etc/systemd/system -name kept.service -o -name first.service -o -name second.timer
"""


@pytest.mark.parametrize("word", ["demo", "first"])
def test_services_that_packages_bring_are_neither_started_nor_enabled(
    tmp_path: Path, word: str
) -> None:
    """As Debian's scripts enable them (deb-systemd-helper), in a mount namespace of its own."""
    stubs, units = tmp_path / "stubs", tmp_path / "units"
    stubs.mkdir()
    units.mkdir()
    for name, text in UNITS.items():
        (units / name).write_text(text)
    for name, text in (("apt-get", APT), ("dpkg-query", "#!/bin/sh\n")):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "STUBS": str(stubs), "UNITS": str(units)}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", ROOT],
        env=env | {"SCRIPT": str(SCRIPT), "WORD": word},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "slurm-wlm" in done.stderr
    assert not {"clang", "postgresql"} & set(done.stderr.split()), "the rest comes later"
    assert done.stdout.split() == [
        "101", "/etc/systemd/system/multi-user.target.wants/kept.service",
    ]  # fmt: skip


NEEDS = REPO / "packaging" / "build-needs.sh"


def needs(kind: str, place: Path, *tools: str, **words: str) -> subprocess.CompletedProcess[str]:
    """What a host that has only these tools lacks for building packages."""
    for tool in ("bash", "basename", *tools):
        (place / tool).symlink_to(shutil.which(tool) or "/bin/false")
    return subprocess.run(
        [place / "bash", NEEDS, kind], capture_output=True, text=True, check=False, timeout=20,
        env={"PATH": str(place), "SLURM_INCLUDE": "/nowhere", **words},
    )  # fmt: skip


def test_all_that_building_packages_needs_is_named_at_once(tmp_path: Path) -> None:
    done = needs("deb", tmp_path, "apt-get")
    assert (done.returncode, done.stdout) == (1, "")
    words = (
        "a C compiler",
        "strip",
        "/nowhere/slurm/spank.h",
        "awk",
        "Python 3.11",
        "git",
        "dpkg-deb",
    )
    for word in words:
        assert f"\n  {word}" in done.stderr
    command = done.stderr.splitlines()[-1]
    assert command.startswith("install them: apt-get install --no-install-recommends gcc ")
    assert {"binutils", "libslurm-dev", "mawk", "python3", "git"} <= set(command.split())


def test_a_host_with_dnf_gets_the_names_of_its_packages(tmp_path: Path) -> None:
    command = needs("rpm", tmp_path, "git", "awk", "dnf").stderr.splitlines()[-1]
    assert command.startswith("install them: dnf install gcc ")
    assert {"slurm-devel", "rpm-build"} <= set(command.split())
    assert "git" not in command.split()


def test_packages_without_compiled_code_need_no_compiler(tmp_path: Path) -> None:
    done = needs("deb", tmp_path, PACKAGES="doc monitoring")
    assert not re.search("compiler|spank.h|strip", done.stderr)
    assert "\n  git\n" in done.stderr


def test_where_all_is_there_nothing_is_printed(tmp_path: Path) -> None:
    tools = "gcc", "strip", "readelf", "objcopy", "awk", "git", "dpkg-deb"
    (tmp_path / "include/slurm").mkdir(parents=True)
    (tmp_path / "include/slurm/spank.h").touch()
    where = {"SLURM_INCLUDE": str(tmp_path / "include"), "PYTHON": sys.executable}
    done = needs("deb", tmp_path, *tools, **where)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
