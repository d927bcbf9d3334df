# SPDX-License-Identifier: Apache-2.0
"""`setup` shows, does and undoes what a host needs, and leaves alone what it does not understand.

The hosts are root directories of images. What leads out of them is in test_hostile_image.py.
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import read_config
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.in_force import AGENT_UNIT
from nccl_inspector.setup.journal import Journal
from nccl_inspector.setup.plan import RUN_UNIT, controller_steps, node_steps
from nccl_inspector.setup.run import Undone, apply, look, take_back_all
from nccl_inspector.setup.site_file import SiteFile, read_site
from nccl_inspector.setup.steps import (
    DirectoryStep,
    PlugstackLineStep,
    State,
    TmpfilesStep,
    UnitStep,
)
from tests.support.host_image import SITE, SLURM_CONF, make_image, setup, tree
from tests.support.repository import PACKAGING, REPO
from tests.support.throwaway_root import can_copy, run_in_copy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes accounts and gives files away")

LINE = "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so default=prom interval=30s\n"
WANTS = "etc/systemd/system/multi-user.target.wants"
UNITS = {"run-nccl\\x2dinspector.mount", "nccl-inspector-agent.service"}
NEXT_BOOT = "systemd does not run here: the next boot mounts and starts what is enabled."
OWN = frozenset((("unit", RUN_UNIT), ("unit", AGENT_UNIT)))
DROP_IN = "etc/slurm/plugstack.conf.d/nccl-inspector.conf"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path / "image")


def test_without_apply_nothing_is_changed(image: Path) -> None:
    before = tree(image)
    status, text = setup(image, "node")
    assert status == 3
    assert tree(image) == before
    assert "to do    /etc/slurm/plugstack.conf: add the line\n" in text
    assert LINE in text
    assert "Nothing was changed. `nccl-inspector setup node --apply` does it." in text


def test_a_node_gets_all_that_it_needs_and_a_second_time_nothing(image: Path) -> None:
    status, text = setup(image, "node", "--apply")
    assert (status, "changed  /etc/slurm/plugstack.conf: add the line" in text) == (0, True)
    assert (image / "etc/slurm/plugstack.conf").read_text() == LINE
    config = read_config(image / "etc/nccl-inspector/nccl-inspector.conf")
    assert (config.report_dir, config.store_dir) == (Path("/shared/reports"), Path("/shared/store"))
    assert "nccl-inspector:x:642:" in (image / "etc/passwd").read_text()
    assert {path.name for path in (image / WANTS).iterdir()} == UNITS
    assert NEXT_BOOT in text
    done = tree(image)
    status, text = setup(image, "node", "--apply")
    assert (status, text.splitlines()[-1]) == (0, "Nothing is to do.")
    assert tree(image) == done
    assert setup(image, "node")[0] == 0


@pytest.mark.parametrize("role", ["node", "controller"])
@pytest.mark.parametrize("plugstack", [None, "# ours\nrequired /opt/other.so a=b", "", "# x\n"])
def test_undo_leaves_the_host_as_it_was(image: Path, role: str, plugstack: str | None) -> None:
    if plugstack is not None:
        (image / "etc/slurm/plugstack.conf").write_text(plugstack)
    before = tree(image)
    assert setup(image, role, "--apply")[0] == 0
    status, text = setup(image, role, "--undo")
    assert (status, text.splitlines()) == (0, [
        "  account nccl-inspector stays: reports may be its files",
        f"What setup {role} had changed is undone.",
    ])  # fmt: skip
    after = tree(image)
    for name in ("passwd", "group", "shadow", "gshadow"):  # the account
        assert after.pop(f"etc/{name}") != before.pop(f"etc/{name}")
    # useradd's own copies do no harm, nor the directory that systemctl makes.
    left = {name for name in after.keys() - before.keys() if not name.endswith(("-", ".lock"))}
    made = {"etc/subuid", "etc/subgid", "etc/systemd/", "etc/systemd/system/"}
    assert left - made == set()
    if plugstack and not plugstack.endswith("\n"):
        after["etc/slurm/plugstack.conf"] = after["etc/slurm/plugstack.conf"].rstrip(b"\n")
    assert {name: after[name] for name in before} == before


def test_a_controller_gets_its_queue_with_slurms_account(image: Path) -> None:
    conf = SLURM_CONF.replace("SlurmUser=slurm", "slurmuser = munch # ours")
    (image / "etc/slurm/slurm.conf").write_text(conf)
    status, text = setup(image, "controller", "--apply")
    assert status == 0, text
    made = (image / "etc/tmpfiles.d/nccl-inspector-controller.conf").read_text()
    assert "d /var/spool/nccl-inspector/queue 2770 munch nccl-inspector -\n" in made
    assert " slurm " not in made
    for name in ("reports", "store"):
        found = (image / "shared" / name).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (642, 642, 0o711)
    assert "by hand  slurm.conf: EpilogSlurmctld must run our hook" in text


def test_what_only_an_admin_does_is_said_until_it_is_done(image: Path) -> None:
    text = setup(image, "node")[1]
    assert "by hand  slurm.conf: PrologFlags needs Alloc" in text
    assert "PrologFlags has" not in text
    hook = "/usr/lib/nccl-inspector/epilogctld/nccl-inspector-epilogctld"
    (image / "etc/slurm/slurm.conf").write_text(
        f"{SLURM_CONF}PrologFlags=Contain\nEpilogSlurmctld={hook}\n"
    )
    assert "done     slurm.conf: PrologFlags has Alloc" in setup(image, "node")[1]
    assert "done     slurm.conf: EpilogSlurmctld runs our hook" in setup(image, "controller")[1]


def spoil_line(image: Path) -> None:
    (image / "etc/slurm/plugstack.conf").write_text(f"optional /opt/{LINE.split('/')[-1]}")


def spoil_included_line(image: Path) -> None:
    (image / "etc/slurm/plugstack.conf").write_text("include plugstack.conf.d/*\n")
    (image / "etc/slurm/plugstack.conf.d").mkdir()
    (image / "etc/slurm/plugstack.conf.d/nccl").write_text(LINE.replace("optional", "required"))


def spoil_settings(image: Path) -> None:
    (image / "etc/nccl-inspector").mkdir()
    (image / "etc/nccl-inspector/nccl-inspector.conf").write_text("report_dir = /elsewhere\n")


def spoil_uid(image: Path) -> None:
    with (image / "etc/passwd").open("a") as file:
        file.write("exim:x:642:642::/:/bin/sh\n")


def spoil_account(image: Path) -> None:
    with (image / "etc/passwd").open("a") as file:
        file.write("nccl-inspector:x:700:700::/:/bin/sh\n")


def spoil_library(image: Path) -> None:
    (image / "usr/lib/nccl-inspector/spank_nccl_inspector.so").unlink()


def spoil_unit(image: Path) -> None:
    (image / "usr/lib/systemd/system/nccl-inspector-agent.service").unlink()


def spoil_plugstack(image: Path) -> None:
    (image / "etc/slurm/plugstack.conf").symlink_to("/etc/passwd")


REFUSED = [
    (spoil_line, "plugstack.conf:1 already says: optional /opt/spank_nccl_inspector.so"),
    (spoil_included_line, "plugstack.conf.d/nccl:1 already says: required"),
    (spoil_settings, "nccl-inspector.conf is there, and setup did not write it"),
    (spoil_uid, "uid 642 is the account exim"),
    (spoil_account, "has the uid 700, and the site file says 642: usermod --uid 642 nccl-inspe"),
    (spoil_library, "spank_nccl_inspector.so is not there: install the package first"),
    (spoil_unit, "nccl-inspector-agent.service is not there: install the package first"),
    (spoil_plugstack, "plugstack.conf: cannot be read"),
]


@pytest.mark.parametrize(("spoil", "why"), REFUSED, ids=lambda one: getattr(one, "__name__", ""))
def test_what_it_does_not_understand_stops_all_of_it(
    image: Path, spoil: Callable[[Path], None], why: str
) -> None:  # fmt: skip
    spoil(image)
    before = tree(image)
    for words in ((), ("--apply",)):
        status, text = setup(image, "node", *words)
        assert (status, why in text) == (1, True), text
        assert tree(image) == before


def test_a_settings_file_that_says_the_same_in_other_words_is_left(image: Path) -> None:
    (image / "etc/nccl-inspector").mkdir()
    conf = image / "etc/nccl-inspector/nccl-inspector.conf"
    conf.write_text("# ours\nstore_dir=/shared/store\nreport_dir=/shared/reports\n")
    before = conf.read_text()
    status, text = setup(image, "node", "--apply")
    assert (status, "done     /etc/nccl-inspector/nccl-inspector.conf" in text) == (0, True)
    assert conf.read_text() == before


def test_a_changed_site_file_changes_what_setup_wrote(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    other = SITE.replace("interval=30s", "interval=60s").replace("/shared/store", "/shared/other")
    status, text = setup(image, "node", "--apply", site=other)
    assert status == 0, text
    assert (image / "etc/slurm/plugstack.conf").read_text() == LINE.replace("30s", "60s")
    conf = image / "etc/nccl-inspector/nccl-inspector.conf"
    assert read_config(conf).store_dir == Path("/shared/other")
    conf.write_text(conf.read_text() + "interval = 1s\n")
    status, text = setup(image, "node", "--apply")
    assert (status, "was changed by hand" in text) == (1, True)
    assert setup(image, "node", "--undo")[0] == 0
    assert "interval = 1s" in conf.read_text(), "somebody's own line is not lost"


@pytest.mark.parametrize("first", ["node", "controller"])
def test_either_role_of_a_host_changes_what_the_other_wrote(image: Path, first: str) -> None:
    second = {"node": "controller", "controller": "node"}[first]
    for role in (first, second):
        assert setup(image, role, "--apply")[0] == 0
    other = SITE.replace("interval=30s", "interval=60s").replace("/shared/store", "/shared/other")
    for role in (second, first):
        status, text = setup(image, role, "--apply", site=other)
        assert status == 0, text
    assert (image / "etc/slurm/plugstack.conf").read_text() == LINE.replace("30s", "60s")
    conf = image / "etc/nccl-inspector/nccl-inspector.conf"
    assert read_config(conf).store_dir == Path("/shared/other")


@pytest.mark.parametrize("first", ["node", "controller"])
def test_what_two_roles_need_goes_with_the_last_of_them(image: Path, first: str) -> None:
    second = {"node": "controller", "controller": "node"}[first]
    before = tree(image)
    for role in ("node", "controller"):
        assert setup(image, role, "--apply")[0] == 0
    status, text = setup(image, first, "--undo")
    assert status == 0
    assert f"  /etc/nccl-inspector/nccl-inspector.conf stays: setup {second} needs it\n" in text
    assert (image / "etc/slurm/plugstack.conf").read_text() == LINE
    assert "done     /etc/nccl-inspector/nccl-inspector.conf" in setup(image, second)[1]
    status, text = setup(image, second, "--undo")
    assert (status, " needs it" in text) == (0, False)
    left = {name for name in tree(image).keys() - before.keys() if name.startswith("etc/")}
    assert {"etc/nccl-inspector/", "etc/slurm/plugstack.conf", "etc/tmpfiles.d/"} & left == set()
    assert list((image / "var/lib/nccl-inspector/setup").iterdir()) == []


def split_journal(image: Path) -> None:
    """Write the journal as releases did that had one for each role."""
    folder = image / "var/lib/nccl-inspector/setup"
    rows = json.loads((folder / "journal.json").read_text())
    (folder / "journal.json").unlink()
    for role in ("node", "controller"):
        own = [row | {"roles": None} for row in rows if row["roles"][0] == role]
        for row in own:
            del row["roles"]
        (folder / f"{role}.json").write_text(json.dumps(own))


def test_the_journals_of_an_older_release_become_one(image: Path) -> None:
    before = tree(image)
    for role in ("node", "controller"):
        assert setup(image, role, "--apply")[0] == 0
    split_journal(image)
    folder = image / "var/lib/nccl-inspector/setup"
    assert {path.name for path in folder.glob("*.json")} == {"controller.json", "node.json"}
    other = SITE.replace("/shared/store", "/shared/other")
    status, text = setup(image, "node", "--apply", site=other)
    assert status == 0, text
    assert [path.name for path in folder.glob("*.json")] == ["journal.json"]
    assert setup(image, "controller", "--undo", site=other)[0] == 0
    assert (image / "etc/nccl-inspector/nccl-inspector.conf").exists(), "the node needs it"
    assert setup(image, "node", "--undo", site=other)[0] == 0
    assert "etc/nccl-inspector/" not in tree(image).keys() - before.keys()


def test_of_two_old_journals_the_one_that_wrote_the_file_counts(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    folder = image / "var/lib/nccl-inspector/setup"
    rows = json.loads((folder / "journal.json").read_text())
    for row in rows:
        del row["roles"]
    (folder / "node.json").write_text(json.dumps(rows))
    stale = [row | {"written": "0" * 64} for row in rows if row["what"].endswith("inspector.conf")]
    (folder / "controller.json").write_text(json.dumps(stale))
    (folder / "journal.json").unlink()
    other = SITE.replace("/shared/store", "/shared/other")
    for role in ("controller", "node"):
        status, text = setup(image, role, "--apply", site=other)
        assert status == 0, text


def test_lines_that_others_add_to_plugstack_conf_survive_undo(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    plugstack = image / "etc/slurm/plugstack.conf"
    plugstack.write_text("# before\n" + plugstack.read_text() + "# after\n")
    assert setup(image, "node")[0] == 0
    assert setup(image, "node", "--undo")[0] == 0
    assert plugstack.read_text() == "# before\n# after\n"


def test_a_failure_in_the_middle_undoes_what_was_done_before_it(image: Path) -> None:
    before = tree(image)
    # systemctl cannot enable the unit: where its link would be is a file.
    (image / "etc/systemd/system").mkdir(parents=True)
    (image / WANTS).write_text("")
    status, text = setup(image, "node", "--apply")
    assert (status, "What was done before it is undone" in text) == (1, True), text
    after = tree(image)
    assert "etc/slurm/plugstack.conf" not in after
    assert "etc/nccl-inspector/nccl-inspector.conf" not in after
    assert after["etc/slurm/slurm.conf"] == before["etc/slurm/slurm.conf"]
    (image / WANTS).unlink()
    assert setup(image, "node", "--apply")[0] == 0


def test_a_failure_leaves_what_an_earlier_run_had_written(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    before = tree(image)
    for unit in (image / WANTS).iterdir():
        unit.unlink()
    (image / WANTS).rmdir()
    (image / WANTS).write_text("")  # systemctl cannot enable the units
    other = SITE.replace("interval=30s", "interval=60s").replace("/shared/store", "/shared/other")
    status, text = setup(image, "node", "--apply", site=other)
    assert (status, "What was done before it is undone" in text) == (1, True), text
    for name in ("etc/slurm/plugstack.conf", "etc/nccl-inspector/nccl-inspector.conf"):
        assert (image / name).read_bytes() == before[name], name
    (image / WANTS).unlink()
    assert setup(image, "node", "--apply", site=other)[0] == 0
    assert setup(image, "node", "--undo")[0] == 0
    assert not (image / "etc/slurm/plugstack.conf").exists()
    assert not (image / "etc/nccl-inspector/nccl-inspector.conf").exists()


class Booted(Host):
    """An image whose systemd runs: setup asks and starts units there."""

    @property
    def is_live(self) -> bool:
        return True

    @property
    def is_booted(self) -> bool:
        return True


class WithTmpfiles(Booted):
    """The same, and systemd-tmpfiles makes there what it is told, of the image's account."""

    def id_of(self, account: str, file: str = "passwd") -> int | None:
        return 642 if account == "nccl-inspector" else super().id_of(account, file)

    def call(self, words: Sequence[str]) -> None:
        assert words[:2] == ["systemd-tmpfiles", "--create"]
        super().call([*words[:2], f"--root={self.root}", f"{self.root}{words[2]}"])


@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="no systemd-tmpfiles")
def test_the_default_directories_of_a_controller_are_made_once(image: Path) -> None:
    with (image / "etc/passwd").open("a") as file:
        file.write("nccl-inspector:x:642:642::/nonexistent:/usr/sbin/nologin\n")
    with (image / "etc/group").open("a") as file:
        file.write("nccl-inspector:x:642:\n")
    host = WithTmpfiles(image)
    steps = [
        one
        for one in controller_steps(host, SiteFile())
        if isinstance(one, TmpfilesStep | DirectoryStep)
    ]
    assert not look(host, "controller", steps).has(State.REFUSED)
    assert len(steps) == 3
    apply(host, "controller", steps)
    for name in ("reports", "store"):
        found = (image / "var/lib/nccl-inspector" / name).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (642, 642, 0o711)
    assert not look(host, "controller", steps).has(State.TO_DO)


SYSTEMCTL = """#!/bin/sh
cd "$0.state" || exit 1
case $1 in
daemon-reload) exit 0 ;;
is-enabled) [ -e "$2.enabled" ] && echo enabled || { echo disabled; exit 1; } ;;
is-active) [ -e "$2.active" ] && echo active || { echo inactive; exit 3; } ;;
enable) [ "$2" = --now ] && touch "$3.enabled" "$3.active" ;;
disable) if [ "$2" = --now ]; then rm -f "$3.enabled" "$3.active"; else rm -f "$2.enabled"; fi ;;
stop) rm "$2.active" ;;
*) exit 64 ;;
esac
"""


def put_systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a systemctl into the path that keeps its units' states as files; return their place."""
    state = tmp_path / "bin" / "systemctl.state"
    state.mkdir(parents=True)
    (tmp_path / "bin" / "systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return state


@pytest.mark.parametrize("before", [set(), {"enabled"}, {"active"}])
def test_undo_leaves_a_unit_enabled_or_running_as_it_was(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: set[str]
) -> None:
    state = put_systemctl(tmp_path, monkeypatch)
    host, unit = Booted(image), UnitStep(AGENT_UNIT)
    for word in before:
        (state / f"{AGENT_UNIT}.{word}").touch()

    def how() -> set[str]:
        return {path.name.rpartition(".")[2] for path in state.iterdir()}

    apply(host, "node", [unit])
    assert how() == {"enabled", "active"}
    (state / f"{AGENT_UNIT}.active").unlink()  # it died, and setup starts it once more
    apply(host, "node", [unit])
    assert how() == {"enabled", "active"}
    assert take_back_all(host, "node", OWN) == Undone((), ())
    assert how() == before


def test_undo_during_a_job_is_done_once_the_job_has_ended(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = put_systemctl(tmp_path, monkeypatch)
    busy = tmp_path / "busy"
    (state.parent / "systemctl").write_text(
        SYSTEMCTL.replace("stop) ", f"stop) case $2 in *.mount) [ ! -e {busy} ] || {{ "
                          f"echo target is busy >&2; exit 1; }} ;; esac; "))  # fmt: skip
    host, steps = Booted(image), [UnitStep(RUN_UNIT), UnitStep(AGENT_UNIT)]
    apply(host, "node", steps)
    busy.touch()
    jobs = image / "run/nccl-inspector/jobs"
    for name in ("42", "7", "lock"):
        (jobs / name).mkdir(parents=True)
    for _ in range(2):
        undone = take_back_all(host, "node", OWN)
        assert undone.stays == ()
        (why,) = undone.pending
        assert why.startswith(f"{RUN_UNIT} stays mounted, because jobs use it: 7, 42. Wait")
        assert {path.name for path in state.iterdir()} == {f"{RUN_UNIT}.active"}
    with monkeypatch.context() as patch:
        patch.setattr("nccl_inspector.commands.setup.Host", Booted)
        status, text = setup(image, "node", "--undo")
        assert status == 1
        assert text.splitlines()[-1].startswith("Not everything is undone.")
    shutil.rmtree(jobs)
    (why,) = take_back_all(host, "node", OWN).pending
    assert "processes use it: fuser -vm /run/nccl-inspector" in why
    assert "is undone.\n" not in text.replace("Not everything is undone.", "")
    busy.unlink()
    assert take_back_all(host, "node", OWN) == Undone((), ())
    assert list(state.iterdir()) == []
    assert take_back_all(host, "node", OWN) == Undone((), ())


def test_an_account_that_could_not_be_made_is_not_said_to_stay(image: Path) -> None:
    with (image / "etc/group").open("a") as file:
        file.write("nccl-inspector:x:700:\n")
    status, text = setup(image, "node", "--apply")
    assert (status, "a group has that name already" in text) == (1, True), text
    assert "stays" not in text


def test_a_configless_node_gets_its_line_from_the_controller(image: Path) -> None:
    (image / "run/slurm").mkdir(parents=True)
    (image / "etc/slurm").rename(image / "run/slurm/conf")
    status, text = setup(image, "node", "--apply")
    assert (status, "plugstack.conf: slurmctld sends it" in text) == (0, True), text
    assert not (image / "run/slurm/conf/plugstack.conf").exists()


def test_an_image_without_slurm_conf_is_set_up_but_for_the_line(image: Path) -> None:
    """Of a configless site: slurmd gets its files when it starts."""
    (image / "etc/slurm/slurm.conf").unlink()
    status, text = setup(image, "node", "--apply")
    assert (status, "by hand  plugstack.conf: there is no slurm.conf in this image" in text) == (
        0, True,
    ), text  # fmt: skip
    assert {path.name for path in (image / WANTS).iterdir()} == UNITS
    assert not (image / "etc/slurm/plugstack.conf").exists()
    status, text = setup(image, "controller")
    assert (status, "refused  no slurm.conf was found" in text) == (1, True), text


def test_a_running_node_without_slurm_conf_is_refused(image: Path) -> None:
    (image / "etc/slurm/slurm.conf").unlink()
    looks = look(Booted(image), "node", node_steps(Booted(image), SiteFile())).looks
    assert "no slurm.conf was found" in next(
        one.text for one in looks if one.state is State.REFUSED
    )


def test_no_preset_disables_at_a_first_boot_what_setup_has_enabled(image: Path) -> None:
    presets = image / "usr/lib/systemd/system-preset"
    presets.mkdir()
    shutil.copy(PACKAGING / "node.preset", presets / "80-nccl-inspector-node.preset")
    shutil.copy(PACKAGING / "controller.preset", presets / "80-nccl-inspector-controller.preset")
    (presets / "90-default.preset").write_text("disable *\n")
    for role in ("node", "controller"):
        assert setup(image, role, "--apply")[0] == 0
    wanted = UNITS | {"nccl-inspector-controller.service"}
    subprocess.run(["systemctl", f"--root={image}", "preset-all"], check=True, capture_output=True)
    assert {path.name for path in (image / WANTS).iterdir()} == wanted
    for role in ("node", "controller"):
        assert setup(image, role, "--undo")[0] == 0
    subprocess.run(["systemctl", f"--root={image}", "preset-all"], check=True, capture_output=True)
    assert not list(image.glob(f"{WANTS}/*"))


# The second has the host's /run, as arch-chroot and many builders of images give it.
CHROOTS = {
    "plain": "exec sh -ec",
    "with-hosts-run": """
mount -t tmpfs none /mnt && cd /mnt
for one in /*; do
    if [ -L "$one" ]; then cp -P "$one" .; continue; fi
    [ -d "$one" ] && [ "$one" != /mnt ] || continue
    mkdir ".$one"
    mount --rbind "$one" ".$one"
done
mkdir -p run/systemd/system
chroot /mnt sh -ec""",
}


@pytest.mark.parametrize("kind", CHROOTS)
def test_in_a_chroot_all_is_done_but_what_only_a_boot_can_do(tmp_path: Path, kind: str) -> None:
    if not can_copy(tmp_path):
        pytest.skip("this machine lets us make no copy of its root")
    image = make_image(tmp_path / "image")
    (tmp_path / "site.toml").write_text(SITE)
    setup_node = f"{REPO}/.venv/bin/nccl-inspector setup node --site {tmp_path}/site.toml"
    script = (
        f"cp -r {image}/usr/lib/nccl-inspector {image}/usr/lib/systemd /usr/lib/; "
        f"mkdir -p /etc/slurm; cp {image}/etc/slurm/slurm.conf /etc/slurm/; "
        "rm -rf /etc/slurm/plugstack.conf "
        "/etc/nccl-inspector /run/nccl-inspector /var/lib/nccl-inspector; "
        # Not userdel, which refuses while a process of the machine has that uid.
        "sed -i /^nccl-inspector:/d /etc/passwd /etc/group /etc/shadow /etc/gshadow; "
        f"{setup_node} --apply; {setup_node}; ls /{WANTS}; cat /etc/slurm/plugstack.conf"
    )
    place = tmp_path / "copy"
    place.mkdir()
    done = run_in_copy(place, f"{CHROOTS[kind]} '{script}'")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert f"  changed  {AGENT_UNIT}: enable" in lines
    assert lines.count(NEXT_BOOT) == 2
    assert "Nothing is to do." in lines
    assert set(lines) >= UNITS
    assert lines[-1] == LINE.strip()


@pytest.mark.parametrize("pattern", ["/etc/slurm/plugstack.conf.d/*", "plugstack.conf.d/*.conf"])
def test_a_directory_that_plugstack_conf_includes_gets_a_file_of_our_own(
    image: Path, pattern: str
) -> None:
    plugstack = image / "etc/slurm/plugstack.conf"
    plugstack.write_text(f"include {pattern}\n")
    before = tree(image)
    assert setup(image, "node", "--apply")[0] == 0
    assert plugstack.read_bytes() == before["etc/slurm/plugstack.conf"]
    assert (image / DROP_IN).read_text() == LINE
    assert setup(image, "node")[0] == 0
    other = SITE.replace("interval=30s", "interval=60s")
    assert setup(image, "node", "--apply", site=other)[0] == 0
    assert (image / DROP_IN).read_text() == LINE.replace("30s", "60s")
    assert setup(image, "node", "--undo", site=other)[0] == 0
    assert not (image / "etc/slurm/plugstack.conf.d").exists()
    assert plugstack.read_bytes() == before["etc/slurm/plugstack.conf"]


def test_a_line_that_setup_wrote_before_the_directory_was_included_stays_where_it_is(
    image: Path,
) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    plugstack = image / "etc/slurm/plugstack.conf"
    plugstack.write_text("include plugstack.conf.d/*\n" + plugstack.read_text())
    other = SITE.replace("interval=30s", "interval=60s")
    assert setup(image, "node", "--apply", site=other)[0] == 0
    assert plugstack.read_text() == "include plugstack.conf.d/*\n" + LINE.replace("30s", "60s")
    assert not (image / DROP_IN).exists()


def test_slurmctld_sends_no_directory_so_that_the_line_goes_into_the_file_itself(
    image: Path,
) -> None:
    conf = SLURM_CONF + "SlurmctldParameters=a,enable_configless\n"
    (image / "etc/slurm/slurm.conf").write_text(conf)
    plugstack = image / "etc/slurm/plugstack.conf"
    plugstack.write_text("include plugstack.conf.d/*\n")
    assert setup(image, "controller", "--apply")[0] == 0
    assert plugstack.read_text() == "include plugstack.conf.d/*\n" + LINE


def test_a_configless_node_gets_a_file_where_the_files_of_slurmctld_include_one(
    image: Path,
) -> None:
    (image / "etc/slurm/plugstack.conf").write_text("include /etc/slurm/plugstack.conf.d/*\n")
    (image / "run/slurm").mkdir(parents=True)
    (image / "etc/slurm").rename(image / "run/slurm/conf")
    assert setup(image, "node", "--apply")[0] == 0
    assert (image / DROP_IN).read_text() == LINE


def test_a_look_at_plugstack_conf_is_at_one_moment_of_it(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    other = PlugstackLineStep(Path("/etc/slurm"), LINE.split()[1], ("default=json",))
    reads: list[Path] = []
    read_text = Host.read_text

    def counting(host: Host, path: Path) -> str:
        reads.append(path)
        return read_text(host, path)

    monkeypatch.setattr(Host, "read_text", counting)
    host = Host(image)
    found = other.look(host, Journal(host, "node"))
    assert found.text == "/etc/slurm/plugstack.conf: change the line"
    assert reads.count(Path("/etc/slurm/plugstack.conf")) == 1


def test_a_line_that_is_gone_is_not_said_to_stay(image: Path) -> None:
    assert setup(image, "node", "--apply")[0] == 0
    (image / "etc/slurm/plugstack.conf").write_text("optional /opt/other.so\n")
    status, text = setup(image, "node", "--undo")
    assert (status, "plugstack.conf" in text) == (0, False), text


def test_debians_old_directory_is_found(image: Path) -> None:
    (image / "etc/slurm").rename(image / "etc/slurm-llnl")
    assert setup(image, "node", "--apply")[0] == 0
    assert (image / "etc/slurm-llnl/plugstack.conf").read_text() == LINE


def test_without_systemd_the_units_are_left_to_the_admin(image: Path) -> None:
    for unit in (image / "usr/lib/systemd/system").iterdir():
        unit.unlink()
    (image / "usr/lib/systemd/system").rmdir()
    status, text = setup(image, "node", "--apply")
    assert (status, "by hand  nccl-inspector-agent.service: systemd is not installed" in text) == (
        0, True,
    ), text  # fmt: skip


def test_the_monitoring_is_written_where_the_site_file_says(image: Path) -> None:
    site = (
        '[monitoring]\nout = "/etc/prometheus/nccl"\nnodes = "n[1-2]"\nset = { cluster = "alpha" }'
    )
    before = tree(image)
    assert setup(image, "monitoring", site=site)[0] == 3
    assert tree(image) == before
    assert setup(image, "monitoring", "--apply", site=site)[0] == 0
    targets = image / "etc/prometheus/nccl/prometheus/nccl-inspector-targets.yml"
    assert '"n2:9100"' in targets.read_text()
    assert setup(image, "monitoring", "--undo", site=site)[0] == 0
    assert not targets.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[slurm]\nword = 1", "unknown key 'word'"),
        ("[slum]\n", "unknown table"),
        ("slurm = 1", "unknown table"),
        ('[slurm]\nwords = "default=prom;rm"', "is not key=value"),
        ('[slurm]\nwords = "default"', "is not key=value"),
        ('[slurm]\nplugin = "a b.so"', "not the path or name of a library"),
        ('[slurm]\nconf_dir = "etc"', "not an absolute path"),
        ('[slurm]\nconf_dir = "/etc/../x"', "not an absolute path"),
        ("[account]\nuid = 0", "not the id of an account"),
        ("[account]\nuid = true", "not of type int"),
        ('[account]\nname = "-x"', "not the name of an account"),
        ('[account]\nname = "x"\n[settings]\nreport_user = "y"', "report_user is y"),
        ('[settings]\nreport_dir = "/a\\nreport_user = root"', "cannot stand in"),
        ('[settings]\nreport_dir = "/a # b"', "cannot stand in"),
        ("[settings]\nreport_dir = [1]", "not text, a number"),
        ("[settings", "Expected"),
        ("\xff", "decode"),
        ("#" * 70000, "larger than 64 KiB"),
    ],
)
def test_a_mistake_in_the_site_file_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InspectorError) as caught:
        read_site(path)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_is_not_known_is_one_line(image: Path) -> None:
    status, text = setup(image, "node", site="[settings]\nreport = 1")
    assert (status, "unknown key 'report'" in text) == (1, True)


def test_what_it_makes_can_be_read_by_users_whatever_the_umask_is(image: Path) -> None:
    old = os.umask(0o077)
    try:
        assert setup(image, "controller", "--apply")[0] == 0
    finally:
        os.umask(old)
    for name in ("etc/nccl-inspector", "etc/tmpfiles.d", "var/lib", "var/lib/nccl-inspector"):
        assert (image / name).stat().st_mode & 0o777 == 0o755, name
    for name in ("etc/nccl-inspector/nccl-inspector.conf", "etc/slurm/plugstack.conf"):
        assert (image / name).stat().st_mode & 0o777 == 0o644, name


def test_two_at_once_are_refused(image: Path) -> None:
    place = image / "var/lib/nccl-inspector/setup"
    place.mkdir(parents=True)
    fd = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert setup(image, "node", "--apply") == (
            1, "nccl-inspector: another nccl-inspector setup runs on this host\n",
        )  # fmt: skip
    finally:
        os.close(fd)
