# SPDX-License-Identifier: Apache-2.0
"""Root sets up and examines images that somebody else made: nothing outside of them changes.

The images come from a seed (tests/support/hostile_image.py).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from nccl_inspector.setup.host import Host
from nccl_inspector.system import tree as tree_module
from tests.support.host_image import SITE, make_image, setup, tree
from tests.support.hostile_image import (
    OUR_LINE,
    HostileImage,
    make_canary,
    use,
    watch,
    watched_host,
)
from tests.support.repository import REPO

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root is led astray")

JOURNAL = "var/lib/nccl-inspector/setup/journal.json"
SEEDS, SEEDS_APART = range(40), ("100", "116")


@pytest.fixture(params=["kernel", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two ways to resolve a path below a root."""
    if request.param == "walk":
        monkeypatch.setattr(tree_module, "_openat2", lambda *_: None)
    return str(request.param)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path / "image")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return make_canary(tmp_path / "canary")


def write_journal(image: Path, *rows: dict[str, object]) -> Path:
    path = image / JOURNAL
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([{"roles": ["node"]} | row for row in rows]))
    return path


def row_of_file(what: str, **more: object) -> dict[str, object]:
    return {"kind": "file", "what": what, "written": "", "before": None, "appended": ""} | more


# Journals.


def hostile_rows(canary: Path) -> dict[str, dict[str, object]]:
    """What a journal may say of the canary, which is beside the image."""
    up = f"/../{canary.name}"
    secret = sha256((canary / "secret").read_bytes()).hexdigest()
    return {
        "replaces": row_of_file(f"{up}/secret", written=secret, before="mine\n"),
        "removes": row_of_file(f"{up}/secret", written=secret),
        "adds": row_of_file(f"{up}/etc/slurm/plugstack.conf", appended=OUR_LINE, replaced="x\n"),
        "takes-out": row_of_file(f"{up}/etc/slurm/plugstack.conf", appended=OUR_LINE),
        "empties": row_of_file(f"{up}/etc/slurm/only-our-line", appended=OUR_LINE),
        "directory": {"kind": "directory", "what": f"{up}/empty/in-it"},
        "parent": {"kind": "parent", "what": f"{up}/empty/in-it"},
    }


@pytest.mark.parametrize("way", ["replaces", "removes", "adds", "takes-out", "empties",
                                 "directory", "parent"])  # fmt: skip
def test_a_journal_that_names_a_file_of_the_host_changes_nothing(
    image: Path, canary: Path, way: str
) -> None:
    write_journal(image, hostile_rows(canary)[way])
    before = watch(canary), tree(image)
    status, text = setup(image, "node", "--undo")
    assert (watch(canary), tree(image)) == before
    assert status == 1
    assert text.splitlines()[0].startswith(f"nccl-inspector: /{JOURNAL}: damaged")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("row", "left"),
    [
        (row_of_file("/etc/shadow", written=sha256(b"root:*::::::\n").hexdigest()), "/etc/shadow"),
        (row_of_file("/etc/motd", appended=OUR_LINE), "/etc/motd"),
        ({"kind": "directory", "what": "/shared"}, "/shared"),
        ({"kind": "parent", "what": "/srv/empty"}, ""),
        ({"kind": "unit", "what": "ssh.service", "before": ""}, "ssh.service"),
    ],
)
def test_a_journal_takes_back_only_steps_of_setup(
    image: Path, row: dict[str, object], left: str
) -> None:
    (image / "etc/motd").write_text(OUR_LINE)
    (image / "srv/empty").mkdir(parents=True)
    wants = image / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (image / "usr/lib/systemd/system/ssh.service").write_text(
        "[Install]\nWantedBy=multi-user.target\n"
    )
    (wants / "ssh.service").symlink_to("/usr/lib/systemd/system/ssh.service")
    before = tree(image)
    write_journal(image, row)
    _, text = setup(image, "node", "--undo")
    assert tree(image) == before
    assert not left or f"{left} stays: the journal names it" in text


def give_away(path: Path) -> None:
    os.chown(path, 64123, 64123)


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def give_away_folder(path: Path) -> None:
    os.chown(path.parent, 64123, 64123)


@pytest.mark.parametrize("spoil", [give_away, open_to_all, give_away_folder])
def test_a_journal_that_is_not_roots_alone_is_refused_in_one_line(
    image: Path, spoil: Callable[[Path], None]
) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    spoil(image / JOURNAL)
    before = tree(image)
    for words in ((), ("--apply",), ("--undo",)):
        status, text = setup(image, "node", *words)
        assert (status, text.count("\n")) == (1, 1)
        assert "it is not setup's journal, and nothing was changed" in text
        assert tree(image) == before


def test_a_site_file_of_then_takes_back_what_that_of_now_does_not_name(image: Path) -> None:
    (image / "opt/slurm").mkdir(parents=True)
    (image / "opt/slurm/slurm.conf").write_text("ClusterName=a\n")
    site = SITE.replace("[slurm]", '[slurm]\nconf_dir = "/opt/slurm"')
    assert setup(image, "node", "--apply", site=site)[0] == 0
    status, text = setup(image, "node", "--undo")
    assert (status, "/opt/slurm/plugstack.conf stays: the journal names it" in text) == (1, True)
    assert (image / "opt/slurm/plugstack.conf").exists()
    assert setup(image, "node", "--undo", site=site)[0] == 0
    assert not (image / "opt/slurm/plugstack.conf").exists()


# Links.


@pytest.mark.parametrize("name", ["etc/slurm", "etc/systemd/system", "etc/nccl-inspector", "etc",
                                  "var", "etc/systemd/system/multi-user.target.wants"])  # fmt: skip
def test_a_link_of_an_image_leads_inside_the_image(
    image: Path, canary: Path, resolver: str, name: str
) -> None:
    """As on sites where /etc/slurm leads to shared storage, which the build host has mounted."""
    del resolver
    inside = image / str(canary).lstrip("/") / name
    inside.parent.mkdir(parents=True)
    place = image / name
    if place.exists():
        place.rename(inside)
    else:
        inside.mkdir()
        place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(canary / name)
    before = watch(canary, *watched_host())
    status, text = setup(image, "node", "--apply")
    assert status == 0, text
    assert watch(canary, *watched_host()) == before
    if name == "etc/slurm":
        assert (inside / "plugstack.conf").read_text().startswith("optional ")
    assert setup(image, "node")[0] == 0, "all of it is done, and in the image"
    assert setup(image, "node", "--undo")[0] == 0
    assert watch(canary, *watched_host()) == before
    if name == "etc/slurm":
        assert not (inside / "plugstack.conf").exists()


def test_a_slurm_directory_that_only_the_booted_node_has_is_the_controllers(
    image: Path, canary: Path
) -> None:
    shutil.rmtree(image / "etc/slurm")
    (image / "etc/slurm").symlink_to(canary / "etc/slurm")
    before = watch(canary)
    status, text = setup(image, "node", "--apply")
    assert (status, "there is no slurm.conf in this image" in text) == (0, True), text
    assert watch(canary) == before


def test_a_pattern_of_plugstack_conf_lists_no_directory_of_the_host(
    image: Path, canary: Path
) -> None:
    (image / "etc/slurm/plugstack.conf").write_text("include conf.d/*\n")
    (image / "etc/slurm/conf.d").symlink_to(canary / "etc/slurm")
    text = setup(image, "node")[1]
    assert "only-our-line" not in text


def test_a_file_that_is_written_anew_keeps_its_mode_and_its_owner(image: Path) -> None:
    plugstack = image / "etc/slurm/plugstack.conf"
    plugstack.write_text("# ours\n")
    plugstack.chmod(0o640)
    os.chown(plugstack, 64030, 64031)

    def rights() -> tuple[int, int, int]:
        status = plugstack.stat()
        return status.st_mode & 0o7777, status.st_uid, status.st_gid

    assert setup(image, "node", "--apply")[0] == 0
    assert rights() == (0o640, 64030, 64031)
    assert setup(image, "node", "--undo")[0] == 0
    assert (plugstack.read_text(), rights()) == ("# ours\n", (0o640, 64030, 64031))


# Accounts and units of an image, without useradd and systemctl.


def test_the_account_of_an_image_is_what_useradd_would_have_made(image: Path) -> None:
    if shutil.which("useradd") is None:
        pytest.skip("no useradd")
    assert setup(image, "node", "--apply")[0] == 0
    other = make_image(image.parent / "other")
    words = "--system --uid 642 --user-group --no-create-home --home-dir /nonexistent"
    subprocess.run(
        ["useradd", "--prefix", str(other), *words.split(), "--shell", "/usr/sbin/nologin",
         "nccl-inspector"], check=True, capture_output=True,
    )  # fmt: skip
    for name in ("passwd", "group", "shadow", "gshadow"):
        made, wanted = ((one / "etc" / name).read_text() for one in (image, other))
        assert made == wanted, name


def test_an_account_without_a_number_gets_one_that_is_free(image: Path) -> None:
    with (image / "etc/group").open("a") as file:
        file.write("render:x:999:\n")
    site = SITE.replace("uid = 642", "")
    assert setup(image, "node", "--apply", site=site)[0] == 0
    assert "nccl-inspector:x:998:998:" in (image / "etc/passwd").read_text()


@pytest.mark.parametrize("number", ["9" * 5000, "4294967295", "99999999999999", "\u0661", "-1"])
def test_what_is_no_number_of_an_account_is_none(image: Path, number: str) -> None:
    for file in ("passwd", "group"):
        with (image / "etc" / file).open("a") as rows:
            rows.write(f"odd:x:{number}:{number}::/:\nnccl-inspector:x:{number}:{number}::/:\n")
    status, text = setup(image, "node")
    assert (status, "Traceback" in text) == (3, False), text


def test_a_masked_unit_is_not_enabled(image: Path) -> None:
    folder = image / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "nccl-inspector-agent.service").symlink_to("/dev/null")
    status, text = setup(image, "node", "--apply")
    assert (status, "nccl-inspector-agent.service is masked" in text) == (1, True), text


# Images from a seed.


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_an_image_holds_nothing_outside_changes(
    tmp_path: Path, canary: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(tree_module, "_openat2", lambda *_: None)
    HostileImage(tmp_path / "image", canary, seed)
    before = watch(canary, *watched_host())
    text = use(tmp_path / "image")
    assert watch(canary, *watched_host()) == before
    assert "secret.so" not in text, "a file of the host was read"


# All but the image is read-only there: whatever is written elsewhere fails, and says so.
APART = """
set -e
mount --bind "$1" "$1"
awk '{ print $5 }' /proc/self/mountinfo | while read -r place; do
    [ "$place" = "$1" ] || mount -o remount,bind,ro "$(printf %b "$place")" 2>/dev/null || :
done
! touch "$1/../probe" 2>/dev/null
touch "$1/probe" && rm "$1/probe"
exec "$2" -c 'import sys
from pathlib import Path
from tests.support.hostile_image import use_apart
use_apart(Path(sys.argv[1]), range(*map(int, sys.argv[2:])))' "$1" "$3" "$4"
"""


def test_nothing_of_the_whole_machine_is_written_to_but_the_image(tmp_path: Path) -> None:
    probe = ["unshare", "--mount", "--propagation", "private", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets us make no mount namespace")
    place = tmp_path / "only"
    place.mkdir()
    done = subprocess.run(
        [*probe[:-1], "sh", "-c", APART, "sh", str(place), sys.executable, *SEEDS_APART],
        env=os.environ | {"PYTHONPATH": f"{REPO}:{REPO / 'python'}", "TMPDIR": str(place),
                          "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPO, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_root_that_is_gone_is_no_host(tmp_path: Path) -> None:
    assert Host(tmp_path / "nowhere").read(Path("/etc/passwd")) is None
