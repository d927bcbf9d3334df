# SPDX-License-Identifier: Apache-2.0
"""What the removal of the SPANK plugin's package does to plugstack.conf, after a real `setup`."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_inspector.setup import host as host_module
from tests.support import packages
from tests.support.host_image import SLURM_CONF, make_image, setup
from tests.support.repository import PACKAGING

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="calls chroot")

LINE = "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so default=prom interval=30s\n"
NOTE = "var/lib/nccl-inspector/setup/plugstack-lines"
TOOK = (
    "slurm-nccl-inspector: took the line out of /etc/slurm/{}. From now on Slurm does not know the "
    "option --nccl-inspector.\n"
)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with busybox for the script."""
    root = make_image(tmp_path / "image")
    packages.fresh_root(root)
    shutil.copy(PACKAGING / "unplug", root / "usr/lib/nccl-inspector/unplug")
    return root


def unplug(image: Path) -> str:
    done = subprocess.run(
        ["chroot", image, "/bin/sh", "/usr/lib/nccl-inspector/unplug"],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def plugstack(image: Path) -> Path:
    return image / "etc/slurm/plugstack.conf"


def test_a_file_that_setup_made_goes(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    assert unplug(image) == TOOK.format("plugstack.conf")
    assert not plugstack(image).exists()
    assert unplug(image) == ""
    assert setup(image, "node")[0] == 3, "installed again, setup has the line to add"
    assert setup(image, "node", "--apply")[0] == 0
    assert plugstack(image).read_text() == LINE


@pytest.mark.parametrize("text", ["", "# ours\n", "optional /opt/a.so x=1  y=\\n\n\n# ours"])
def test_everything_else_in_a_sites_file_stays(image: Path, text: str) -> None:
    plugstack(image).write_text(text)
    plugstack(image).chmod(0o640)
    os.chown(plugstack(image), 64030, 64030)
    assert setup(image, "node", "--apply")[0] == 0
    os.chown(plugstack(image), 64030, 64030)
    plugstack(image).chmod(0o640)
    with plugstack(image).open("a") as file:
        file.write("optional /opt/b.so\n")
    unplug(image)
    wanted = text if text.endswith("\n") or not text else f"{text}\n"
    assert plugstack(image).read_text() == f"{wanted}optional /opt/b.so\n"
    found = plugstack(image).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (64030, 64030, 0o640)


def test_an_empty_file_of_the_site_stays_empty(image: Path) -> None:
    plugstack(image).write_text("")
    assert setup(image, "node", "--apply")[0] == 0
    unplug(image)
    assert plugstack(image).read_text() == ""


def test_our_own_file_in_the_sites_directory_goes(image: Path) -> None:
    plugstack(image).write_text("include /etc/slurm/plugstack.conf.d/*\n")
    (image / "etc/slurm/plugstack.conf.d").mkdir()
    (image / "etc/slurm/plugstack.conf.d/pyxis.conf").write_text("required /opt/pyxis.so\n")
    assert setup(image, "node", "--apply")[0] == 0
    assert unplug(image) == TOOK.format("plugstack.conf.d/nccl-inspector.conf")
    assert {path.name for path in (image / "etc/slurm/plugstack.conf.d").iterdir()} == {
        "pyxis.conf"
    }


def own_line(image: Path) -> str:
    plugstack(image).write_text(f"# x\n{LINE}")
    return "plugstack.conf:2"


def changed_line(image: Path) -> str:
    assert setup(image, "node", "--apply")[0] == 0
    plugstack(image).write_text(LINE.replace("30s", "10s"))
    return "plugstack.conf:1"


def included_line(image: Path) -> str:
    plugstack(image).write_text("include plugstack.conf.d/*.conf\n")
    (image / "etc/slurm/plugstack.conf.d").mkdir()
    (image / "etc/slurm/plugstack.conf.d/x.conf").write_text(f"\n\n{LINE}")
    return "plugstack.conf.d/x.conf:3"


def line_that_setup_found(image: Path) -> str:
    where = own_line(image)
    assert setup(image, "node", "--apply")[0] == 0
    return where


@pytest.mark.parametrize("prepare", [own_line, changed_line, included_line, line_that_setup_found])
def test_a_line_that_somebody_else_wrote_stays_and_is_named(
    image: Path, prepare: Callable[[Path], str]
) -> None:
    where = prepare(image)
    files = {path: path.read_text() for path in (image / "etc/slurm").rglob("*.conf")}
    text = unplug(image)
    assert text.startswith(f"slurm-nccl-inspector: /etc/slurm/{where} names the library")
    assert text.count("\n") == 1
    assert {path: path.read_text() for path in files} == files


def test_a_comment_that_names_the_library_is_not_meant(image: Path) -> None:
    plugstack(image).write_text(f"# {LINE}")
    assert unplug(image) == ""


def test_a_directory_that_the_site_file_names_is_looked_at(image: Path) -> None:
    (image / "opt/slurm/etc").mkdir(parents=True)
    (image / "opt/slurm/etc/plugstack.conf").write_text(LINE)
    (image / "etc/nccl-inspector").mkdir()
    (image / "etc/nccl-inspector/site.toml").write_text('[slurm]\nconf_dir = "/opt/slurm/etc"\n')
    assert "/opt/slurm/etc/plugstack.conf:1 names the library" in unplug(image)


def test_what_other_hosts_read_too_is_left_to_the_admin(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/proc/self/mountinfo").open() as file:
        device = image.stat().st_dev
        (kind,) = {
            line.partition(" - ")[2].split()[0]
            for line in file
            if line.split()[2] == f"{os.major(device)}:{os.minor(device)}"
        }
    monkeypatch.setattr(host_module, "_SHARED", frozenset({kind}))
    assert setup(image, "node", "--apply")[0] == 0
    assert "/etc/slurm/plugstack.conf:1 names the library" in unplug(image)
    assert plugstack(image).read_text() == LINE


def test_a_site_whose_slurmctld_sends_the_file_is_told_to_reconfigure(image: Path) -> None:
    conf = SLURM_CONF + "SlurmctldParameters=enable_configless\n"
    (image / "etc/slurm/slurm.conf").write_text(conf)
    assert setup(image, "controller", "--apply")[0] == 0
    assert unplug(image).splitlines()[1:] == [
        "slurm-nccl-inspector: slurmctld sends that file to the nodes: run scontrol reconfigure."
    ]


def test_with_both_roles_on_a_host_the_line_goes_whichever_was_set_up_last(image: Path) -> None:
    for role in ("controller", "node"):
        assert setup(image, role, "--apply")[0] == 0
    assert unplug(image) == TOOK.format("plugstack.conf")


def test_after_undo_nothing_is_noted(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    assert (image / NOTE).exists()
    assert setup(image, "node", "--undo")[0] == 0
    assert not (image / NOTE).exists()


def test_undo_after_the_removal_has_nothing_to_say_of_the_line(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    unplug(image)
    status, text = setup(image, "node", "--undo")
    assert (status, "plugstack" in text) == (0, False), text


def test_a_file_stays_whole_where_there_is_no_room_for_another(image: Path) -> None:
    slurm = image / "etc/slurm"
    text = "# ours\n" * 1000 + LINE
    options = "size=8k"  # the file, and no second one
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", slurm], check=True)
    try:
        plugstack(image).write_text(text)
        note = image / NOTE
        note.parent.mkdir(parents=True)
        note.write_text(f"/etc/slurm/plugstack.conf\tkept\t{LINE}")
        assert "could not take the line out of /etc/slurm/plugstack.conf: do that" in unplug(image)
        assert plugstack(image).read_text() == text
        assert [path.name for path in slurm.iterdir()] == ["plugstack.conf"]
    finally:
        subprocess.run(["umount", slurm], check=True)
