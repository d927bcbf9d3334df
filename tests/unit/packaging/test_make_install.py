# SPDX-License-Identifier: Apache-2.0
"""`make install` puts everything where it is told, and `make uninstall` takes all of it away."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.make_install import files_below, make
from tests.support.repository import REPO

# A minute together, with what is built for them.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ALL = ("install", "install-python", "install-enroot", "install-monitoring")
OTHER = (
    "PREFIX=/opt/us", "LIBDIR=/opt/us/libexec/ours", "SYSCONFDIR=/opt/us/conf", "SBINDIR=/opt/us/s",
    "SLURM_PLUGINDIR=/opt/slurm/plugins", "UNITDIR=/opt/units", "TMPFILESDIR=/opt/tmpfiles",
)  # fmt: skip
DEFAULTS = (
    b"/usr/lib/nccl-inspector", b"/etc/nccl-inspector", b"/etc/enroot", b"/usr/bin/nccl-inspector",
    b"/usr/lib/tmpfiles.d/nccl-inspector.conf", b"/usr/share/doc/slurm-nccl-inspector",
)  # fmt: skip
HOOK = "50-nccl-inspector.sh"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root in which all parts are installed, none of them at a default path."""
    root = tmp_path_factory.mktemp("elsewhere")
    make(*ALL, f"DESTDIR={root}/d", *OTHER, stage=root / "stage")
    return root / "d"


def test_no_installed_file_names_a_default_path(elsewhere: Path) -> None:
    found = files_below(elsewhere)
    assert len(found) > 200
    assert {Path(name).parts[0] for name in found} == {"opt"}
    wrong = {
        name: default
        for name in found
        for default in DEFAULTS
        if default in (elsewhere / name).read_bytes()
    }
    assert wrong == {}


def test_the_paths_as_given_are_in_what_needs_them(elsewhere: Path) -> None:
    def text(name: str) -> str:
        return (elsewhere / "opt" / name).read_bytes().decode("latin-1")

    assert "ExecStart=/opt/us/bin/nccl-inspector agent\n" in text(
        "units/nccl-inspector-agent.service"
    )
    assert "--create /opt/tmpfiles/nccl-inspector" in text("units/nccl-inspector-agent.service")
    sample = text("us/libexec/ours/plugstack.conf.sample")
    assert "\noptional /opt/slurm/plugins/spank_nccl_inspector.so\n" in sample
    spank = text("slurm/plugins/spank_nccl_inspector.so")
    assert "/opt/us/libexec/ours/libnccl-profiler-inspector.so\0" in spank
    assert "/opt/us/conf/nccl-inspector/nccl-inspector.conf\0" in spank
    assert "/opt/us/libexec/ours/$" in text("us/libexec/ours/nccl-inspector-hook")
    assert text(f"us/conf/enroot/mounts.d/{HOOK[:-3]}.fstab").count("/opt/us/libexec/ours") == 2


def test_patterns_for_the_nodes_hooks_find_no_hook_of_the_controller(elsewhere: Path) -> None:
    """slurm.conf's Epilog=.../epilog/* runs all that is there, as root, at each job's end."""
    lib = elsewhere / "opt/us/libexec/ours"
    for kind in ("prolog", "epilog"):
        assert [path.name for path in (lib / kind).iterdir()] == [HOOK]
    assert (lib / "epilogctld" / "nccl-inspector-epilogctld").exists()


def test_everybody_may_read_all_of_it_and_only_root_may_write(elsewhere: Path) -> None:
    for path in (elsewhere / "opt").rglob("*"):
        assert path.stat().st_mode & 0o777 in ({0o755} if path.is_dir() else {0o644, 0o755}), path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix in which command and enroot's files are installed, to be used from there."""
    prefix = tmp_path_factory.mktemp("live")
    words = f"PREFIX={prefix}", f"SYSCONFDIR={prefix}/etc"
    make("install-python", "install-enroot", *words, stage=prefix.parent / "stage-live")
    return prefix


def run(prefix: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(prefix / "bin" / "nccl-inspector"), *words]
    env = {"PYTHONPATH": "/nonexistent", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_the_command_runs_without_a_venv_and_says_in_one_line_what_a_report_needs(
    live: Path,
) -> None:
    assert run(live, "--version").stdout.startswith("nccl-inspector, version ")
    assert run(live, "explain").returncode == 0
    for words, status in ((("report", "12"), 3), (("setup", "monitoring", "--out", "/x"), 1)):
        done = run(live, *words)
        assert done.returncode == status
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.endswith(
            " is missing on this host: install the package slurm-nccl-inspector-tools "
            "(by pip: slurm-nccl-inspector[report])"
        )


def test_a_user_who_adds_our_directory_to_pythons_path_gets_our_package_alone(live: Path) -> None:
    python = live / "lib/nccl-inspector/python"
    assert {path.name for path in python.iterdir()} <= {
        "nccl_inspector", "__main__.py", "__pycache__",
    }  # fmt: skip


def test_node_commands_are_a_tenth_of_what_nodes_may_carry(live: Path) -> None:
    size = sum(path.stat().st_size for path in live.rglob("*") if path.is_file())
    assert size < 20e6  # compiled files included


def test_an_upgrade_writes_no_file_in_place_and_removes_what_the_new_release_has_not(
    live: Path,
) -> None:
    lib = live / "lib/nccl-inspector"
    listed = lib / "installed" / "python"
    text = listed.read_text()
    for name in ("python/nccl_inspector/oldroom/gone.py", "python/nccl_inspector/gone.py"):
        (lib / name).parent.mkdir(exist_ok=True)
        (lib / name).write_text("")
        text += f"{lib / name}\n"
    listed.write_text("".join(f"{line}\n" for line in sorted(text.split())))
    kept = lib / "python/nccl_inspector/cli.py"
    before = kept.stat().st_ino
    with kept.open() as old:
        make("install-python", f"PREFIX={live}", stage=live.parent / "stage-live")
        assert old.read() == kept.read_text()
    assert kept.stat().st_ino != before
    assert not (lib / "python/nccl_inspector/oldroom").exists()
    assert not (lib / "python/nccl_inspector/gone.py").exists()
    assert run(live, "--version").returncode == 0


def test_uninstall_removes_all_of_ours_and_nothing_else(elsewhere: Path, tmp_path: Path) -> None:
    root = tmp_path / "d"
    shutil.copytree(elsewhere, root, symlinks=True)
    others = {"opt/us/conf/enroot/hooks.d/10-site.sh", "opt/us/conf/nccl-inspector/site.toml"}
    for name in others:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("site's own\n")
    compiled = root / "opt/us/libexec/ours/python/nccl_inspector/__pycache__"
    compiled.mkdir()
    (compiled / "cli.cpython-311.pyc").write_bytes(b"")
    make("uninstall", f"DESTDIR={root}", *OTHER, stage=tmp_path / "stage")
    assert files_below(root) == others


def test_uninstall_where_nothing_is_installed_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--silent", "uninstall", f"DESTDIR={tmp_path}"],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "nothing is installed" in done.stderr
