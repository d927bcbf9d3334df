# SPDX-License-Identifier: Apache-2.0
"""What is in the packages, and what dpkg does with them in a fresh root."""

import platform
import re
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from tests.support import packages
from tests.support.make_install import files_below, make
from tests.support.native_programs import exported, needed_glibc
from tests.support.packages import NAME, PACKAGES, dpkg, left
from tests.support.repository import REPO

# A minute together, with what is built for them.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ENROOT = {"etc/enroot/hooks.d/50-nccl-inspector.sh", "etc/enroot/mounts.d/50-nccl-inspector.fstab"}
# Of Debian 12.
OTHERS = {"python3": "3.11.2-1", "libc6": "2.36-9", "slurm-wlm-basic-plugins": "22.05.8-4+deb12u3"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def debs(place: Path) -> dict[str, Path]:
    """The packages without tools, by suffix."""
    return {packages.suffix_of(file): file for file in packages.build("deb", place / "built")}


@pytest.fixture(scope="module")
def trees(debs: dict[str, Path], place: Path) -> dict[str, Path]:
    return {suffix: packages.unpacked(file, place) for suffix, file in debs.items()}


def test_each_file_that_make_installs_is_in_one_package_and_nothing_else(
    trees: dict[str, Path], tmp_path: Path
) -> None:
    installs = [
        f"install-{part}" for one in PACKAGES if one["suffix"] in trees for part in one["parts"]
    ]
    make(*installs, f"DESTDIR={tmp_path}/d", stage=tmp_path / "stage")
    wanted = {
        f"{name}.gz" if "/man/" in name else name
        for name in files_below(tmp_path / "d")
        if "/nccl-inspector/installed/" not in name
    }
    found = list(chain.from_iterable(map(files_below, trees.values())))
    papers = re.compile("usr/share/(lintian/|doc/[^/]+/(changelog|copyright))")
    assert sorted(name for name in found if not papers.match(name)) == sorted(wanted)
    assert {name for name in found if papers.match(name) and "lintian" not in name} == {
        f"usr/share/doc/{NAME}{suffix and '-' + suffix}/{paper}"
        for suffix in trees
        for paper in ("changelog.gz", "changelog.Debian.gz", "copyright")
    }


def test_root_owns_every_file_and_nobody_else_may_write_one(debs: dict[str, Path]) -> None:
    for file in debs.values():
        said = subprocess.run(["dpkg-deb", "-c", file], capture_output=True, text=True, check=True)
        for line in said.stdout.splitlines():
            assert re.match(r"(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) root/root ", line), line


def printed_by(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("suffix", "allowed"),
    [("profiler", r"ncclProfiler_v[1-7]"), ("slurm", r"(slurm_spank|plugin|spank_plugin)_\w+")],
)
def test_a_library_is_as_hard_and_as_quiet_as_it_is_meant_to_be(
    trees: dict[str, Path], suffix: str, allowed: str
) -> None:
    (library,) = trees[suffix].rglob("*.so")
    assert exported(library)
    assert [name for name in exported(library) if not re.fullmatch(allowed, name)] == []
    said = printed_by("readelf", "-dlS", "--wide", library)
    assert "GNU_RELRO" in said
    assert "NOW" in said
    assert re.search(r"GNU_STACK.* RW ", said)
    assert not re.search(r"RPATH|RUNPATH|TEXTREL|\.debug_|\.symtab", said)
    # Of glibc's with a check of the size; and a canary on the stack.
    symbols = printed_by("readelf", "--dyn-syms", "--wide", library)
    assert re.search(r" __\w+_chk@", symbols)
    assert "__stack_chk_fail@" in symbols
    assert platform.machine() != "x86_64" or "endbr64" in printed_by("objdump", "-d", library)
    if suffix == "profiler":
        assert max(needed_glibc(library).values()) <= (2, 28)


def test_no_file_knows_where_it_was_built(trees: dict[str, Path]) -> None:
    for tree in trees.values():
        for name in files_below(tree):
            assert str(REPO).encode() not in (tree / name).read_bytes(), name


def test_compiled_files_are_not_shipped_and_the_node_has_nothing_compiled_but_the_libraries(
    trees: dict[str, Path],
) -> None:
    assert not [path for tree in trees.values() for path in tree.rglob("*.pyc")]
    elf = {
        suffix: [name for name in files_below(tree) if (tree / name).read_bytes()[:4] == b"\x7fELF"]
        for suffix, tree in trees.items()
    }
    assert {suffix for suffix, found in elf.items() if found} == {"profiler", "slurm"}


def control_fields(file: Path, *fields: str) -> str:
    """Return the fields; of a single one its value alone."""
    return printed_by("dpkg-deb", "-f", file, *fields).strip()


@pytest.mark.parametrize("suffix", ["profiler", "slurm"])
def test_debug_symbols_are_a_package_that_fits_this_library_alone(
    debs: dict[str, Path], trees: dict[str, Path], tmp_path: Path, suffix: str
) -> None:
    (file,) = debs[suffix].parent.glob(f"debug/{NAME}-{suffix}-dbgsym_*.deb")
    subprocess.run(["dpkg-deb", "--extract", file, tmp_path], check=True)
    (symbols,) = tmp_path.rglob("*.debug")
    (library,) = trees[suffix].rglob("*.so")

    def build_id(path: Path) -> str:
        (found,) = re.findall(r"Build ID: (\w+)", printed_by("readelf", "--notes", path))
        return str(found)

    assert build_id(symbols) == build_id(library) == f"{symbols.parent.name}{symbols.stem}"
    info = printed_by("readelf", "--debug-dump=info", symbols)
    assert re.search(r"DW_AT_name .*: (plugin|spank)/[\w/]+\.c", info)
    assert str(REPO) not in info
    version = control_fields(debs[suffix], "Version")
    assert control_fields(file, "Depends") == f"{NAME}-{suffix} (= {version})"


def test_packages_of_two_releases_are_not_mixed(debs: dict[str, Path]) -> None:
    version = control_fields(debs[""], "Version")
    depends = control_fields(debs["node"], "Depends")
    assert f"{NAME} (= {version}), {NAME}-profiler (= {version})" in depends
    assert f"{NAME}-profiler (= {version})" in control_fields(debs["enroot"], "Depends")


def test_who_maintains_a_package_can_be_reached(tmp_path: Path, debs: dict[str, Path]) -> None:
    assert control_fields(debs["node"], "Maintainer") == (
        "the administrator of this host <root@localhost>"
    )
    words = "PACKAGER=HPC team <hpc@example.org>"
    (named,) = packages.build("deb", tmp_path, words, suffixes=("enroot",))
    assert control_fields(named, "Maintainer") == "HPC team <hpc@example.org>"


def test_a_slurm_that_is_in_no_package_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "slurm/include").mkdir(parents=True)
    (tmp_path / "slurm/include/slurm").symlink_to("/usr/include/slurm")
    words = f"SLURM_PREFIX={tmp_path}/slurm"
    (file,) = packages.build("deb", tmp_path / "out", words, suffixes=("slurm",))
    assert "slurm-wlm" not in (depends := control_fields(file, "Depends"))
    assert "libc6" in depends
    assert "+slurm22.05" in control_fields(file, "Version")


def test_a_node_gets_far_less_than_40_megabytes(debs: dict[str, Path]) -> None:
    def installed_kib(suffix: str) -> int:
        command = ["dpkg-deb", "-f", str(debs[suffix]), "Installed-Size"]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    assert sum(map(installed_kib, ("", "profiler", "slurm", "node"))) < 10_000


def test_the_spank_plugin_is_for_one_release_of_slurm(debs: dict[str, Path]) -> None:
    said = control_fields(debs["slurm"], "Version", "Depends")
    assert re.search(r"Version: .*\+slurm22\.05\n", said)
    assert "slurm-wlm-basic-plugins (>= 22.05~) | slurm-smd (>= 22.05~)" in said
    assert "slurm-wlm-basic-plugins (<< 22.06~) | slurm-smd (<< 22.06~)" in said


def test_the_same_commit_gives_the_same_package_byte_by_byte(
    debs: dict[str, Path], tmp_path: Path
) -> None:
    again = packages.build("deb", tmp_path, suffixes=("node", "profiler"))
    assert len(again) == 2
    for file in again:
        assert file.read_bytes() == debs[packages.suffix_of(file)].read_bytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = packages.fresh_root(tmp_path / "root")
    packages.pretend_installed(found, OTHERS)
    return found


def test_a_node_is_installed_upgraded_removed_and_purged(
    debs: dict[str, Path], root: Path, tmp_path: Path
) -> None:
    done = dpkg(root, "--install", *debs.values())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (root / "usr/bin/nccl-inspector").exists()
    # Nothing is enabled, and there is no configuration of ours, account or directory for reports.
    assert {name for name in left(root) if not name.startswith("usr/")} == ENROOT

    kept = {"etc/nccl-inspector/site.toml": "x", "var/lib/nccl-inspector/store/1.json": "x"}
    hook = root / "etc/enroot/hooks.d/50-nccl-inspector.sh"
    hook.write_text(changed := hook.read_text() + "# the site's line\n")
    for name, text in kept.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    newer = packages.build("deb", tmp_path / "new", "VERSION=0.9", suffixes=packages.QUICK)
    compiled = root / "usr/lib/nccl-inspector/python/nccl_inspector/__pycache__"
    compiled.mkdir()
    (compiled / "cli.cpython-311.pyc").touch()
    done = dpkg(root, "--install", "--force-confold", *newer)
    assert done.returncode == 0, done.stderr
    assert hook.read_text() == changed

    ours = [f"{NAME}{suffix and '-' + suffix}" for suffix in debs]
    done = dpkg(root, "--remove", *ours)
    assert done.returncode == 0, done.stderr
    assert left(root) == {*kept, *ENROOT}
    assert dpkg(root, "--purge", *ours).returncode == 0
    assert left(root) == kept.keys()


def plug(root: Path, line: str) -> Path:
    """Put the line into plugstack.conf as setup does; return that file."""
    note = root / "var/lib/nccl-inspector/setup/plugstack-lines"
    plugstack = root / "etc/slurm/plugstack.conf"
    for path in (note, plugstack):
        path.parent.mkdir(parents=True, exist_ok=True)
    plugstack.write_text(f"# ours\n{line}\n")
    note.write_text(f"/etc/slurm/plugstack.conf\tkept\t{line}\n")
    return plugstack


def test_the_line_goes_with_the_library_and_not_before(
    debs: dict[str, Path], root: Path, tmp_path: Path
) -> None:
    assert dpkg(root, "--install", *debs.values()).returncode == 0
    plugstack = plug(root, line := "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so")
    newer = packages.build("deb", tmp_path / "new", "VERSION=0.9", suffixes=packages.QUICK)
    assert dpkg(root, "--install", *newer).returncode == 0
    assert dpkg(root, "--remove", f"{NAME}-node", f"{NAME}-enroot").returncode == 0
    assert line in plugstack.read_text()
    done = dpkg(root, "--remove", f"{NAME}-slurm")
    assert (done.returncode, done.stderr) == (0, "")
    assert "took the line out of /etc/slurm/plugstack.conf" in done.stdout
    assert plugstack.read_text() == "# ours\n"


def test_dpkg_refuses_the_plugin_of_another_release_of_slurm(
    debs: dict[str, Path], root: Path
) -> None:
    packages.pretend_installed(root, OTHERS | {"slurm-wlm-basic-plugins": "24.11.5-4"})
    done = dpkg(root, "--install", debs["slurm"])
    assert done.returncode != 0
    assert "slurm-wlm-basic-plugins" in done.stderr
