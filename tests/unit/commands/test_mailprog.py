# SPDX-License-Identifier: Apache-2.0
"""The report as a mail, and the MailProg that never loses Slurm's own."""

import email
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

import pytest

from nccl_inspector.commands.mailprog import read_slurm_mail, wait_for
from nccl_inspector.errors import InspectorError
from nccl_inspector.render.json import to_json
from nccl_inspector.render.mail import make_mail, send, subject
from tests.sandbox import wait_until
from tests.support import example_cards
from tests.support.example_cards import CARDS
from tests.support.mail_site import WRAPPER, Site, program

NOW = datetime(2026, 8, 2, 17, tzinfo=UTC)
SLURMS = ["-s", "Slurm Job_id=48213 Name=gpt Ended, Run time 02:14:00, COMPLETED", "amy"]
ENDED = {"SLURM_JOB_ID": "48213", "SLURM_JOB_MAIL_TYPE": "Ended"}


def parsed(message: bytes) -> EmailMessage:
    return email.message_from_bytes(message, policy=default)


def headers(message: bytes) -> list[bytes]:
    """The lines before the first empty one, as they are: nothing decodes them."""
    return message.partition(b"\n\n")[0].split(b"\n")


OURS = [b"To", b"Subject", b"Auto-Submitted", b"MIME-Version", b"Content-Type"]


def names_of(lines: list[bytes]) -> list[bytes]:
    return [line.partition(b":")[0] for line in lines if not line.startswith(b" ")]


# The mail itself.


@pytest.mark.parametrize("name", CARDS)
def test_a_subject_is_a_line_of_78_characters_at_most(name: str) -> None:
    text = subject(CARDS[name]())
    assert len(text) <= 78
    assert text.isascii()
    assert text.isprintable()


def test_a_mail_has_the_verdict_the_text_and_the_page() -> None:
    mail = parsed(make_mail(example_cards.network(), "amy@example.org", NOW))
    assert mail["Subject"] == "NCCL DEGRADED (network), cost 33 s (0.4%): job 48213 gpt-pretrain"
    assert mail["To"] == "amy@example.org"
    text, page = mail.iter_parts()
    assert text.get_content_type() == "text/plain"
    assert "VERDICT  DEGRADED (network), high confidence" in text.get_content()
    assert page.get_content_type() == "text/html"
    assert page.get_filename() == "nccl-job-48213.html"
    assert page.get_content().startswith("<!doctype html>")


@pytest.mark.parametrize("name", CARDS)
def test_no_line_of_a_mail_is_longer_than_a_mailer_takes(name: str) -> None:
    data = make_mail(CARDS[name](), "amy", NOW)
    assert max(map(len, data.split(b"\n"))) <= 998


def test_slurms_subject_and_body_stay_in_front() -> None:
    mail = parsed(make_mail(example_cards.network(), "amy", NOW, (SLURMS[1], "a body\n")))
    assert mail["Subject"] == f"{SLURMS[1]}, NCCL DEGRADED (network), cost 33 s (0.4%)"
    body = mail.get_body()
    assert body is not None
    assert body.get_content().split("\n")[:3] == [SLURMS[1], "", "a body"]


def test_a_subject_says_who_it_was_and_the_cost() -> None:
    card = example_cards.hang()
    assert subject(card) == (
        "NCCL HUNG, rank 2 (n11 GPU2), cost 37 min (28%): job 48213 gpt-pretrain"
    )
    own = parsed(make_mail(card, "amy", NOW, (SLURMS[1], "")))["Subject"]
    assert own == f"{SLURMS[1]}, NCCL HUNG, rank 2 (n11 GPU2), cost 37 min (28%)"


ENCODED = "=?utf-8?q?=0D=0ABcc:_all@example.org?="


@pytest.mark.parametrize(
    "name", [ENCODED, "x\r\nBcc: all@example.org", "gr\u00f6\u00dfe", "a" * 10_000]
)
def test_who_it_was_adds_no_header_whatever_a_communicator_is_called(name: str) -> None:
    """A rank's name has that of its communicator, which is the application's."""
    card = example_cards.hang()
    first = card.findings[0]
    rank = replace(first.entities[0], name=f"rank 2 of {name}")
    finding = replace(first, entities=(rank, *first.entities[1:]))
    for own in (None, (SLURMS[1], "")):
        named = replace(card, findings=(finding, *card.findings[1:]))
        lines = headers(make_mail(named, "amy", NOW, own))
        assert names_of(lines) == OURS
        assert b"?" not in b"".join(lines)
        assert all(line.isascii() and line.decode("ascii").isprintable() for line in lines)
        assert max(map(len, lines)) <= 998
    assert "job 48213" in subject(named)


def test_a_hostile_name_of_a_job_adds_no_header() -> None:
    own = ("Slurm Job_id=1 Name=x\r\nBcc: all@example.org\r\n\r\nhello", "")
    mail = parsed(make_mail(example_cards.hostile(), "amy", NOW, own))
    assert mail["Bcc"] is None
    assert mail["Subject"].startswith("Slurm Job_id=1 Name=x__Bcc: all@example.org____hello, NCCL")


@pytest.mark.parametrize(
    "name",
    [
        ENCODED, f"train {ENCODED} {ENCODED}", "=?utf-8?b?DQpCY2M6IGFsbEBleGFtcGxlLm9yZw==?=",
        "x\nBcc: all@example.org", "x\r\n\r\nhello", "x\x0bBcc: a", "x\u2028Bcc: a",
        "gr\u00f6\u00dfe", "\udcff", "=?" * 200, "a" * 10_000,
    ],
)  # fmt: skip
def test_the_raw_headers_of_a_mail_are_ours_whatever_a_job_or_user_is_called(name: str) -> None:
    card = example_cards.network()
    named = replace(card, job=replace(card.job, name=name, user=name))
    for own in (None, (f"Slurm Job_id=1 Name={name} Ended", name)):
        lines = headers(make_mail(named, "amy@example.org", NOW, own))
        assert names_of(lines) == OURS
        assert b"?" not in b"".join(lines), "so there is no encoded word"
        assert all(line.isascii() and line.decode("ascii").isprintable() for line in lines)
        assert b"\r" not in make_mail(named, "amy@example.org", NOW, own).partition(b"\n\n")[0]
        assert max(map(len, lines)) <= 998


def test_many_addresses_are_folded_and_all_there() -> None:
    to = ", ".join(f"user{number}@{'x' * 40}.example.org" for number in range(50))
    data = make_mail(example_cards.network(), to, NOW)
    assert max(map(len, headers(data))) <= 998
    assert parsed(data)["To"] == to


# Python's reader of addresses ends with IndexError, AttributeError or TypeError on some.
@pytest.mark.parametrize(
    "to",
    ["", " ", "a\nBcc: b", "a\x00", "größe@x", "a" * 3000, '"', "a <", "a@[", "a:;", ".@.",
     "a@b, =?utf-8?q?=0d=0aBcc:_v@w?=", "a,,b", "a@b@c", "|reboot", "/etc/passwd", "-oQ/tmp", "a b",
     "a..b@c", "a.@c", "a@-b", "a@b..c", "<a@b>", "a\r", "a@b\n", ",".join(["a"] * 51)],
)  # fmt: skip
def test_what_is_no_address_is_refused(to: str) -> None:
    with pytest.raises(InspectorError, match="not a mail address"):
        make_mail(example_cards.network(), to, NOW)


def test_sendmail_gets_the_mail_on_its_input_and_the_addresses_in_it(tmp_path: Path) -> None:
    fake = program(tmp_path / "sendmail", f'echo "$@" >{tmp_path}/args; cat >{tmp_path}/mail')
    send(make_mail(example_cards.network(), "amy, bob@example.org", NOW), fake)
    assert (tmp_path / "args").read_text() == "-t -i\n"
    sent = (tmp_path / "mail").read_bytes()
    assert sent.startswith(b"To: amy,\n bob@example.org\n")
    assert b"\r" not in sent


def test_a_sendmail_that_fails_or_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    mail = make_mail(example_cards.network(), "amy", NOW)
    with pytest.raises(InspectorError, match="failed with 75: try later"):
        send(mail, program(tmp_path / "sendmail", "cat >/dev/null; echo try later >&2; exit 75"))
    with pytest.raises(InspectorError, match="No such file"):
        send(mail, tmp_path / "none")


# What Slurm calls.


def test_a_mail_without_a_jobs_number_is_not_ours() -> None:
    with pytest.raises(InspectorError, match="SLURM_JOB_ID"):
        read_slurm_mail("s", "amy", b"", {"SLURM_JOB_ID": "7;reboot"})


@pytest.mark.parametrize(
    ("said", "restart"), [(None, 0), ("2", 2), ("x", 0), ("٣", 0), ("9" * 30, 0)]
)
def test_the_attempt_is_that_of_the_environment(said: str | None, restart: int) -> None:
    env = {"SLURM_JOB_ID": "7"} | ({} if said is None else {"SLURM_JOB_RESTART_COUNT": said})
    assert read_slurm_mail("s", "amy", b"\xff", env).restart == restart


def test_a_report_that_comes_late_is_waited_for_and_no_longer_than_asked() -> None:
    waits: list[float] = []
    answers = iter([None, None, example_cards.network()])
    assert wait_for(lambda: next(answers), 3600, waits.append) is example_cards.network()
    assert len(waits) == 2
    assert wait_for(lambda: None, 0, waits.append) is None
    assert len(waits) == 2


# The wrapper, with the real command behind it where a report is to come.


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_wrapper_is_short_executable_and_passes_shellcheck() -> None:
    assert len(WRAPPER.read_text(encoding="ascii").splitlines()) <= 60
    assert os.access(WRAPPER, os.X_OK)
    done = subprocess.run(
        ["shellcheck", "-S", "style", WRAPPER], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_ID": "48213", "SLURM_JOB_MAIL_TYPE": "Began"},
        {"SLURM_JOB_ID": "48213", "SLURM_JOB_MAIL_TYPE": "Requeued"},
        {"SLURM_JOB_MAIL_TYPE": "Ended"},
        {"SLURM_JOB_ID": "x", "SLURM_JOB_MAIL_TYPE": "Failed"},
    ],
)
def test_any_other_mail_goes_to_the_mailer_unchanged(site: Site, env: dict[str, str]) -> None:
    site.command("exit 0")
    site.call(env, SLURMS)
    assert site.unchanged(SLURMS)


def test_odd_words_reach_the_mailer_as_they_are(site: Site) -> None:
    argv = ["-s", "a  'b' \"c\" $(reboot) `x` * \\", "-amy"]
    site.call({}, argv, "")
    assert site.unchanged(argv, "")


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$", "cat >/dev/null; exit 3"])
def test_a_command_that_fails_loses_nothing(site: Site, script: str) -> None:
    site.command(script)
    site.call(ENDED, SLURMS)
    assert site.unchanged(SLURMS)


def test_without_the_command_the_mail_goes_unchanged(site: Site) -> None:
    shutil.rmtree(site.folder / "bin")
    site.call(ENDED, SLURMS)
    assert site.unchanged(SLURMS)


def test_a_wrapper_that_is_told_to_end_sends_at_once(site: Site) -> None:
    site.command(f"echo $PPID >{site.folder}/timeout.new; mv {site.folder}/timeout.new "
                 f"{site.folder}/timeout.pid; exec sleep 100")  # fmt: skip
    site.call(ENDED, SLURMS)
    pid_file = site.folder / "timeout.pid"
    wait_until(pid_file.exists, 20, "the command")
    status = Path(f"/proc/{pid_file.read_text().strip()}/status").read_text()
    wrapper = next(line.split()[1] for line in status.split("\n") if line.startswith("PPid"))
    os.kill(int(wrapper), signal.SIGTERM)
    assert site.unchanged(SLURMS)


def test_the_end_of_a_job_comes_with_its_report(site: Site) -> None:
    site.report.write_text(to_json(example_cards.straggler(), NOW))
    site.call(ENDED, SLURMS)
    mail = email.message_from_bytes(site.mail("sendmail"), policy=default)
    assert mail["Subject"].startswith(f"{SLURMS[1]}, NCCL DEGRADED (straggler)")
    assert mail["To"] == "amy"
    body = mail.get_body()
    assert body is not None
    assert "a body\n\nNCCL JOB REPORT" in body.get_content()
    assert not (site.folder / "mailer.mail").exists()


def test_without_a_report_in_time_the_mail_goes_unchanged(tmp_path: Path) -> None:
    site = Site(tmp_path, wait="0s")
    site.call(ENDED, SLURMS)
    assert site.unchanged(SLURMS)


def test_a_sendmail_that_fails_leaves_the_mail_to_the_mailer(site: Site) -> None:
    site.report.write_text(to_json(example_cards.straggler(), NOW))
    program(site.folder / "sendmail", "cat >/dev/null; exit 75")
    site.call(ENDED, SLURMS)
    assert site.unchanged(SLURMS)
