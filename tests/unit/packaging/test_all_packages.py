# SPDX-License-Identifier: Apache-2.0
"""All packages, as .deb and as .rpm, and what lintian and rpmlint say of them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import packages
from tests.support.make_install import files_below
from tests.support.native_programs import needed_glibc
from tests.support.packages import NAME, PACKAGES, left
from tests.support.repository import PACKAGING

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ALL = tuple(one["suffix"] or "command" for one in PACKAGES)
ARM = ("CROSS=aarch64", "CC=aarch64-linux-gnu-gcc")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def debs(place: Path) -> dict[str, Path]:
    built = packages.build("deb", place / "deb", suffixes=ALL)
    return {packages.suffix_of(file): file for file in built}


@pytest.fixture(scope="module")
def rpms(place: Path) -> dict[str, Path]:
    built = packages.build("rpm", place / "rpm", suffixes=ALL)
    return {packages.suffix_of(file): file for file in built}


def asked(file: Path, *words: str) -> list[str]:
    command = ["rpm", "--query", "--package", "--nosignature", *words, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_both_kinds_have_the_same_files(
    debs: dict[str, Path], rpms: dict[str, Path], place: Path
) -> None:
    assert debs.keys() == rpms.keys() == {one["suffix"] for one in PACKAGES}
    (place / "trees").mkdir()
    for suffix, file in debs.items():
        tree = packages.unpacked(file, place / "trees")
        papers = re.compile("usr/share/(lintian/|doc/.*/changelog.Debian.gz)")
        wanted = {f"/{name}" for name in files_below(tree) if not papers.match(name)}
        folders = {line for line in asked(rpms[suffix], "--list") if line not in wanted}
        assert set(asked(rpms[suffix], "--list")) - folders == wanted
        assert all("nccl-inspector" in folder for folder in folders)


def test_lintian_finds_nothing(debs: dict[str, Path]) -> None:
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", *debs.values()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0)
    # They may have no file that overrides what it says of root's mailbox.
    symbols = sorted((debs[""].parent / "debug").glob("*.deb"))
    assert len(symbols) == 2
    known = "bogus-mail-host,root-in-contact"
    done = subprocess.run(
        ["lintian", "--allow-root", "--suppress-tags", known, "--fail-on", "error,warning",
         *symbols],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0)


def test_rpmlint_finds_nothing(rpms: dict[str, Path]) -> None:
    conf = PACKAGING / "packages" / "rpmlint.toml"
    symbols = sorted((rpms[""].parent / "debug").glob("*.rpm"))
    assert len(symbols) == 2
    done = subprocess.run(
        ["rpmlint", "-c", conf, *rpms.values(), *symbols],
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r" 0 errors, 0 warnings", done.stdout), done.stdout


def test_an_rpm_asks_for_what_runs_it_and_not_for_what_it_brings(rpms: dict[str, Path]) -> None:
    assert "python(abi) >= 3.11" in asked(rpms[""], "--requires")
    slurm = asked(rpms["slurm"], "--requires")
    assert {"slurm >= 22.05", "slurm < 22.06"} <= set(slurm)
    tools = asked(rpms["tools"], "--requires")
    assert not [line for line in tools if re.search("openblas|gfortran|quadmath", line)]
    assert [line for line in tools if re.fullmatch(r"python\(abi\) = 3\.\d+", line)]
    assert asked(rpms["tools"], "--provides") == [
        line for line in asked(rpms["tools"], "--provides") if line.startswith(f"{NAME}-tools")
    ]
    for suffix in ("profiler", "tools"):  # RHEL 8 has 2.28
        needed = [
            re.search(r"\(GLIBC_(\d+)\.(\d+)", line) for line in asked(rpms[suffix], "--requires")
        ]
        assert max((int(one[1]), int(one[2])) for one in needed if one) <= (2, 28)


def test_rpm_keeps_the_sites_changes_and_leaves_only_them(
    rpms: dict[str, Path], tmp_path: Path
) -> None:
    assert asked(rpms["enroot"], "--configfiles") == [
        "/etc/enroot/hooks.d/50-nccl-inspector.sh",
        "/etc/enroot/mounts.d/50-nccl-inspector.fstab",
    ]
    root = packages.fresh_root(tmp_path / "root")
    rpm = ["rpm", "--root", str(root), "--nodeps", "--nosignature", "--force-debian"]
    done = subprocess.run(
        [*rpm, "--install", *rpms.values()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "usr/lib/systemd/system/run-nccl\\x2dinspector.mount").exists()
    hook = root / "etc/enroot/hooks.d/50-nccl-inspector.sh"
    hook.write_text(hook.read_text() + "# the site's line\n")
    (root / "var/lib/nccl-inspector/store").mkdir(parents=True)
    (root / "var/lib/nccl-inspector/store/1.json").touch()
    plugstack = root / "etc/slurm/plugstack.conf"
    plugstack.parent.mkdir(parents=True)
    plugstack.write_text(line := "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so\n")
    note = root / "var/lib/nccl-inspector/setup/plugstack-lines"
    note.parent.mkdir()
    note.write_text(f"/etc/slurm/plugstack.conf\tkept\t{line}")
    again = [*rpm, "--upgrade", "--replacepkgs", str(rpms["slurm"])]
    subprocess.run(again, check=True, capture_output=True)
    assert plugstack.read_text() == line
    compiled = root / "usr/lib/nccl-inspector/python/nccl_inspector/__pycache__"
    compiled.mkdir()
    (compiled / "cli.cpython-311.pyc").touch()
    names = [f"{NAME}{suffix and '-' + suffix}" for suffix in rpms]
    done = subprocess.run([*rpm, "--erase", *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert plugstack.read_text() == ""
    assert left(root) == {
        "etc/slurm/plugstack.conf", "etc/enroot/hooks.d/50-nccl-inspector.sh.rpmsave",
        "var/lib/nccl-inspector/store/1.json",
    }  # fmt: skip


def test_reports_can_be_made_with_what_the_packages_bring(
    debs: dict[str, Path], tmp_path: Path
) -> None:
    """In a mount namespace that has the packages' directory where it belongs."""
    lib = tmp_path / "lib"
    lib.mkdir()
    for suffix in ("", "tools"):
        tree = packages.unpacked(debs[suffix], tmp_path)
        for folder in (tree / "usr/lib/nccl-inspector").iterdir():
            folder.rename(lib / folder.name)
    script = (
        "mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work && "
        "mount -t overlay -o lowerdir=/usr/lib,upperdir=/mnt/up,workdir=/mnt/work none /usr/lib && "
        f"mkdir -p /usr/lib/nccl-inspector && mount --bind {lib} /usr/lib/nccl-inspector && "
        f"{tmp_path}/command/usr/bin/nccl-inspector setup monitoring --out {tmp_path}/out && "
        f"{tmp_path}/command/usr/bin/nccl-inspector analyze {lib}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "out/prometheus/nccl-inspector-rules.yml").exists(), done.stderr
    assert "missing on this host" not in done.stderr
    assert "no " in done.stderr  # of JSON lines, which are not there


@pytest.mark.parametrize("python", ["3.12", "3.13"])  # of Ubuntu 24.04, of Debian 13
def test_tools_are_there_for_the_python_of_another_distribution(
    tmp_path: Path, python: str
) -> None:
    (deb,) = packages.build("deb", tmp_path / "deb", f"REPORT_PYTHON={python}", suffixes=("tools",))
    assert f"+python{python}_" in deb.name
    depends = ["dpkg-deb", "-f", str(deb), "Depends"]
    said = subprocess.run(depends, capture_output=True, text=True, check=True).stdout
    assert f", python{python}," in said
    report = packages.unpacked(deb, tmp_path) / "usr/lib/nccl-inspector/report"
    assert [path.name for path in report.iterdir()] == [f"python{python}"]
    modules = [path.name for path in report.rglob("*.so") if ".libs" not in path.parent.name]
    tag = f"cpython-{python.replace('.', '')}-|abi3"
    assert len(modules) > 20
    assert [name for name in modules if not re.search(tag, name)] == []


def test_the_libraries_are_packaged_for_arm(tmp_path: Path) -> None:
    (deb,) = packages.build("deb", tmp_path / "deb", *ARM, suffixes=("profiler",))
    (rpm,) = packages.build("rpm", tmp_path / "rpm", *ARM, suffixes=("profiler",))
    assert (deb.name.split("_")[-1], rpm.name.split(".")[-2]) == ("arm64.deb", "aarch64")
    assert asked(rpm, "--queryformat", "%{ARCH}") == ["aarch64"]
    for file in (deb, rpm):
        (tmp_path / file.suffix).mkdir()
        (library,) = packages.unpacked(file, tmp_path / file.suffix).rglob("*.so")
        said = subprocess.run(
            ["readelf", "-h", library], capture_output=True, text=True, check=True
        )
        assert "AArch64" in said.stdout
        assert max(needed_glibc(library).values()) <= (2, 28)
