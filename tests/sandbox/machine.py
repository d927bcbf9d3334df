"""One machine of the cluster, head or node: making it, running commands in it, its daemons."""

import pwd
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import HEAD, REPO, Layout
from tests.sandbox.processes import DAEMON_ENV, Process, record, recorded, spawn, wait_gone

_SETUP = Path(__file__).with_name("machine.sh")
_HOLDER = "machine"
_STOP_S = 10.0


def as_user(user: str) -> list[str]:
    """What to put before a command that root runs as `user`, with the user's groups."""
    if user == "root":
        return []
    account = pwd.getpwnam(user)
    words = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]
    return ["setpriv", *words, "--"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A UTS and a mount namespace with the processes in it. The network is the host's."""

    layout: Layout
    name: str

    def make(self) -> None:
        """Create the namespaces and everything mounted in them.

        Raises:
            ClusterError: the kernel or the host refuses one of the mounts.
        """
        self.layout.private(self.name).mkdir(parents=True)
        kind = "head" if self.name == HEAD else "node"
        tree = [str(self.layout.tree), str(REPO)] if self.layout.tree else []
        done = subprocess.run(
            ["unshare", "--uts", "--mount", "--propagation", "private", "--",
             "sh", str(_SETUP), str(self.layout.root), self.name, kind,
             self.layout.host_name(self.name), *tree],
            env=DAEMON_ENV, cwd="/", capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ClusterError(f"cannot make machine {self.name}: {done.stderr.strip()}")
        record(self._note(_HOLDER), int(done.stdout))

    @property
    def exists(self) -> bool:
        return self.process(_HOLDER) is not None

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in here to its end and return what it printed, whatever its exit status.

        Raises:
            subprocess.TimeoutExpired: it was ended after `timeout` seconds.
        """
        return subprocess.run(
            self.argv(argv, user=user, env=env, cwd=cwd), cwd="/", input=stdin, text=True,
            capture_output=True, errors="replace", timeout=timeout, check=False, umask=0o022,
        )  # fmt: skip

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command in here that the caller ends; its output is in the pipes."""
        return subprocess.Popen(
            self.argv(argv, user=user, env=env, cwd=cwd), cwd="/", text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, umask=0o022,
        )  # fmt: skip

    def argv(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> list[str]:
        """The host's command line that runs `argv` in here as by a fresh login of `user`."""
        shell = pwd.getpwnam(user).pw_shell
        home = Path("/root") if user == "root" else self.layout.root / "home" / user
        variables = self._login_env(user, home, shell) | dict(env or {})
        return [
            *self._enter(), *as_user(user),
            "env", "-i", "-C", str(cwd or home),
            *(f"{key}={value}" for key, value in variables.items()), *argv,
        ]  # fmt: skip

    def start(self, service: str, argv: Sequence[str]) -> None:
        """Start a daemon in here; what it prints goes to the log `<service>-<machine>.out`.

        Raises:
            ClusterError: it already runs.
        """
        if self.process(service):
            raise ClusterError(f"{service} already runs on {self.name}")
        env = DAEMON_ENV | {"SLURM_CONF": str(self.layout.slurm_conf)}
        log = self.layout.root / "log" / f"{service}-{self.name}.out"
        spawn([*self._enter(), *argv], log=log, env=env, note=self._note(service))

    def stop(self, service: str, number: Signals = SIGTERM) -> bool:
        """End one daemon of this machine and nothing else; False when it did not run."""
        process = self.process(service)
        if process is None:
            return False
        process.send(number)
        if not wait_gone([process], _STOP_S):
            process.send(SIGKILL)
            wait_gone([process], _STOP_S)
        return True

    def process(self, service: str) -> Process | None:
        """The daemon if it lives."""
        return recorded(self._note(service))

    def output(self, service: str) -> str:
        """What a daemon has printed so far."""
        return self._read(f"{service}-{self.name}.out")

    def _read(self, log: str) -> str:
        try:
            return (self.layout.root / "log" / log).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _note(self, service: str) -> Path:
        return self.layout.root / "pids" / f"{service}-{self.name}"

    def _enter(self) -> list[str]:
        holder = self.process(_HOLDER)
        if holder is None:
            raise ClusterError(f"machine {self.name} does not run")
        namespaces = f"/proc/{holder.pid}/ns"
        return ["nsenter", f"--mount={namespaces}/mnt", f"--uts={namespaces}/uts", "--"]

    def _login_env(self, user: str, home: Path, shell: str) -> dict[str, str]:
        """Our own programs come first on PATH, as on a site where they are installed."""
        ours = self.layout.own_program if self.layout.tree else Path(sys.executable)
        return {
            "PATH": f"{ours.parent}:{DAEMON_ENV['PATH']}",
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": shell,
            "SLURM_CONF": str(self.layout.slurm_conf),
        }
