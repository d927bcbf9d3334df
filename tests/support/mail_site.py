"""A site with nccl-inspector-mail: its mailer and its sendmail write down what they get."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.sandbox import wait_until
from tests.sandbox.layout import REPO

WRAPPER = REPO / "packaging" / "nccl-inspector-mail"


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


COMMAND = """
import sys
from pathlib import Path
import click
from nccl_inspector.commands import mailprog
from nccl_inspector.render.json import card_from_json

def find(_config, _job_id, _restart):
    path = Path({path!r})
    return card_from_json(path.read_bytes()) if path.exists() else None

mailprog.find_for_mail = find
cli = click.Group(commands=[mailprog.mailprog])
sys.argv[2:2] = ["--conf", {conf!r}]
cli()
"""


class Site:
    """A mailer, a sendmail and a command that write down what they get."""

    def __init__(self, folder: Path, wait: str = "60s") -> None:
        self.folder = folder
        self.report = folder / "report.json"
        self.conf = folder / "conf"
        for name in ("mailer", "sendmail"):
            program(
                folder / name,
                f'for word; do printf "%s\\n" "$word"; done >{folder}/{name}.args\n'
                f"cat >{folder}/{name}.new; mv {folder}/{name}.new {folder}/{name}.mail",
            )
        self.conf.write_text(
            f"mailer = {folder}/mailer  \nsendmail = {folder}/sendmail\nmail_wait = {wait}\n"
        )
        (folder / "main.py").write_text(COMMAND.format(path=str(self.report), conf=str(self.conf)))
        self.command(f'PYTHONPATH={REPO}/python exec {sys.executable} {folder}/main.py "$@"')
        # The wrapper sets PATH itself, as Slurm gives it none.
        self.wrapper = folder / "nccl-inspector-mail"
        text = WRAPPER.read_text().replace("PATH=/usr/sbin", f"PATH={folder}/bin:/usr/sbin")
        text = text.replace("conf=/etc/nccl-inspector/nccl-inspector.conf", f"conf={self.conf}")
        self.wrapper.write_text(text)
        self.wrapper.chmod(0o755)

    def command(self, script: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        program(self.folder / "bin" / "nccl-inspector", script)

    def call(self, env: Mapping[str, str], argv: Sequence[str], body: str = "a body\n") -> None:
        """Call the wrapper as slurmctld does; it must be back at once."""
        process = subprocess.Popen(
            [self.wrapper, *argv], env=dict(env), text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = process.communicate(body, timeout=20)
        # As slurmctld does with what is left of its script.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert (process.returncode, out, err) == (0, "", "")

    def mail(self, name: str) -> bytes:
        path = self.folder / f"{name}.mail"
        wait_until(path.exists, 60, f"a mail of the {name}")
        return path.read_bytes()

    def unchanged(self, argv: Sequence[str], body: str = "a body\n") -> bool:
        """Tell whether the mailer got what Slurm gave."""
        got = self.mail("mailer").decode()
        return (got, (self.folder / "mailer.args").read_text().split("\n")) == (body, [*argv, ""])
