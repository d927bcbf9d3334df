# SPDX-License-Identifier: Apache-2.0
"""The service of a node: it publishes, collects and reports its own state, again and again."""

import faulthandler
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from nccl_inspector.agent.collect import Backlog, Collector
from nccl_inspector.agent.condenser import Condenser
from nccl_inspector.agent.counters.device_series import counters_series
from nccl_inspector.agent.counters.sampling_times import CounterWatch
from nccl_inspector.agent.counters.sources import Readers
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.dump_before_end import DumpsBeforeEnd
from nccl_inspector.agent.endpoint import Endpoint
from nccl_inspector.agent.kill_switch import is_disabled
from nccl_inspector.agent.last_collection import forget_collection, note_collection
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.orphans import Sweeper
from nccl_inspector.agent.prom_access import group_id, set_access
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.agent.self_metrics import own_process
from nccl_inspector.agent.signals import LiveSignals
from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.text import SeriesLine, make_series
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import (
    AGENT,
    Note,
    agent_note,
    texts,
    this_process,
    write_note,
)
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.notify import Notifier
from nccl_inspector.system.wakeup import Wakeup
from nccl_inspector.system.write_as_user import CHILD_S

log = logging.getLogger("nccl-inspector")
_T = TypeVar("_T")

# How long a pass waits for the child that writes a summary; a later pass looks for a slow one.
HANDOVER_WAIT_S = 1.0
# A collection without an agent starts no further pass after this time, so that it is done before
# the timer's next one.
COLLECT_S = 240.0
# The endpoint shows nothing older, even if the agent hangs. It is also the time of the unit's
# watchdog and of the alert NcclInspectorAgentDown.
STALE_S = 120.0


class Agent:
    """Publisher and collector of one run directory, with one tally."""

    def __init__(
        self,
        config: Config,
        run_fd: int,
        *,
        watching: bool = True,
        readers: Readers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take over the work in a run directory.

        `watching`: there will be more passes, so counters can be sampled. `clock`: the only source
        of time of a pass.

        Raises:
            OSError: one of its directories does not exist.
            InspectorError: there is no group `prom_group`.
        """
        self._tally = Tally()
        self._at_work = AtWork(run_fd)
        self._clock = clock
        self._publisher = Publisher(run_fd, config.cluster, self._tally, self._at_work, clock)
        self._collector = Collector(
            run_fd, config, self._tally, self._at_work, watching=True, clock=clock
        )
        self._condenser = Condenser(run_fd, self._tally, self._at_work, clock)
        self._sweeper = Sweeper(run_fd, config, self._tally, clock)
        self._live = LiveSignals(run_fd, config.cluster, clock)
        self._dumps = DumpsBeforeEnd(run_fd, config.dump_before_s)
        self._run_fd = run_fd
        self._watching, self._readers = watching, readers
        self._watch: CounterWatch | None = None
        self._set_watch(config)
        self._who = agent_labels(config)
        self._prom_gid = group_id(config.prom_group)
        self._troubles: set[str] = set()
        self._noted: Note | None = None

    def configure(self, config: Config) -> None:
        """Use another configuration from the next pass on.

        Raises:
            InspectorError: there is no group `prom_group`; then nothing has changed.
        """
        self._set_prom_access(group_id(config.prom_group))
        self._publisher.configure(config.cluster)
        self._collector.configure(config)
        self._sweeper.configure(config)
        self._live.configure(config.cluster)
        self._dumps.configure(config.dump_before_s)
        self._set_watch(config)
        self._who = agent_labels(config)

    def _set_prom_access(self, gid: int | None) -> None:
        if gid is not None or self._prom_gid is not None:
            what = "set who may read the published files"
            self.attempt(what, lambda: set_access(self._run_fd, gid))
        self._prom_gid = gid

    def _set_watch(self, config: Config) -> None:
        wanted = config.counters and self._watching
        if wanted and not self._watch:
            self._watch = CounterWatch(self._run_fd, self._tally, self._readers, self._clock)
        elif self._watch and not wanted:
            self._watch.close()
            self._watch = None

    def run_pass(self, wait_s: float) -> None:
        """Sweep, publish and collect once; what the system refuses is logged and tried again."""
        begun = self._clock.monotonic_s()
        disabled = is_disabled(self._run_fd)
        self._set_prom_access(self._prom_gid)
        self.attempt("look for jobs without an epilog", self._sweeper.run_pass)
        if watch := self._watch:
            self.attempt("sample counters", lambda: watch.begin_pass(disabled))
        jobs = self.attempt("publish", lambda: self._publisher.run_pass(disabled))
        users = self._publisher.users
        now_s = self._clock.unix_s()
        self.attempt("ask for dumps", lambda: self._dumps.run_pass(users, now_s))
        self.attempt("condense boxes of ended processes", lambda: self._condenser.run_pass(users))
        if watch:
            self.attempt("take counters", watch.end_pass)
        held = (watch and self.attempt("wait for counters", watch.held)) or set()
        waiting = self.attempt("collect", lambda: self._collector.run_pass(wait_s, held))
        if jobs is None or waiting is None:
            withdraw = self.stop if jobs is None else self._publisher.withdraw_own
            self.attempt("withdraw", withdraw)
            return
        self._tally.forget(jobs | self._collector.jobs())
        live = self.attempt("look at boxes", lambda: self._live.run_pass(self._publisher.users))
        pass_s = self._clock.monotonic_s() - begun
        series = self._series(len(jobs), waiting, pass_s, disabled)
        self.attempt(
            "publish its own state", lambda: self._publisher.write_own([*series, *(live or ())])
        )

    @property
    def trouble(self) -> str:
        """What cannot be done at present, as text; empty: nothing."""
        return self._collector.trouble

    def note(self, path: Path, note: Note) -> None:
        """Say which settings are in use and what cannot be done, if that has changed."""
        if note != self._noted:
            self._noted = None
            self.attempt("note its settings", lambda: self._write_note(path, note))

    def _write_note(self, path: Path, note: Note) -> None:
        write_note(path, note, 0o644)
        self._noted = note

    def stop(self) -> None:
        """Withdraw what was published."""
        self._publisher.stop()

    def close(self) -> None:
        """Close the directories."""
        self._publisher.close()
        self._collector.close()
        self._condenser.close()
        self._sweeper.close()
        self._live.close()
        self._dumps.close()
        if self._watch:
            self._watch.close()

    def forgive(self) -> None:
        """Clear the crash record: the agent ends normally, and the next reads everything again."""
        self.attempt("clear the record", self._at_work.forgive)

    def attempt(self, what: str, act: Callable[[], _T]) -> _T | None:
        """Do it; if the system refuses, log that once until it works again, and return None."""
        try:
            result = act()
        except OSError as err:
            if what not in self._troubles:
                self._troubles.add(what)
                log.warning("cannot %s: %s", what, err)
            return None
        self._troubles.discard(what)
        return result

    def _series(self, jobs: int, waiting: int, pass_s: float, disabled: bool) -> list[SeriesLine]:
        who = self._who
        values = {
            "jobs": str(jobs),
            "ended_jobs_waiting": str(waiting),
            "collect_failures_total": str(self._tally.collect_failures),
            "publish_failures_total": str(self._tally.publish_failures),
            "ranks_lost_total": str(self._tally.lost),
            "last_pass_timestamp_seconds": f"{self._clock.unix_s():.3f}",
            "pass_seconds": f"{pass_s:.6f}",
            "swept_jobs_total": str(self._tally.swept),
            "disabled": str(int(disabled)),
        }
        series = [
            make_series(f"nccl_inspector_agent_{name}", who, value)
            for name, value in values.items()
        ]
        counted = {"rejected_files": self._tally.rejected, "slurm_answers": self._tally.answers}
        for what, counts in counted.items():
            name = f"nccl_inspector_agent_{what}_total"
            for reason, number in sorted(counts.items()):
                series.append(make_series(name, who | {"reason": reason}, str(number)))
        if self._watch:
            series += counters_series(self._watch, who)
        return [
            *series,
            *own_process(who),
            *self._publisher.build_info(),
            *self._publisher.left_out(),
        ]


def agent_labels(config: Config) -> dict[str, str]:
    """Return the labels of the agent's own series.

    They come from the settings and not from jobs, so that a series keeps its name when a job comes.
    """
    node = config.node_name or socket.gethostname().split(".")[0]
    return {"cluster": config.cluster, "node": node}


def _lock(run_fd: int, config: Config) -> int:
    """Return a descriptor that keeps a second agent out of the run directory.

    The lock is on `jobs`, which only root may open: otherwise a user's lock could keep us out.
    """
    fd = os.open("jobs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=run_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise InspectorError(f"another agent runs on {config.run_dir}") from None
    return fd


def _opened(config: Config, run_fd: int) -> list[tuple[int, int]]:
    """Return device and inode of the directories that an agent opens, as they are now.

    Raises:
        OSError: one of them does not exist.
    """
    found = [config.run_dir.stat()]
    found += [
        os.stat(name, dir_fd=run_fd, follow_symlinks=False) for name in ("jobs", "ended", "prom")
    ]
    return [(one.st_dev, one.st_ino) for one in found]


@contextmanager
def _run_dir(config: Config) -> Iterator[int]:
    fds = []
    try:
        fds.append(os.open(config.run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        fds.append(_lock(fds[0], config))
        yield fds[0]
    except OSError as err:
        where = config.run_dir / (err.filename or "")
        raise InspectorError(f"{where}: {err.strerror}") from err
    finally:
        for fd in fds:
            os.close(fd)


class _Signals:
    """The signals that the service has received; must be made in the main thread."""

    def __init__(self, rereads: bool, notifier: Notifier) -> None:
        self._notifier = notifier
        self.ended = self._reload = False
        self._wakeup = Wakeup()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        if rereads:
            signal.signal(signal.SIGHUP, self._reread)

    def wait(self, seconds: float) -> bool:
        """Wait for this time or a signal; return whether to read the configuration again."""
        end, beat_s = SYSTEM_CLOCK.monotonic_s() + seconds, self._notifier.beat_s or seconds
        while not (self.ended or self._reload) and (left := end - SYSTEM_CLOCK.monotonic_s()) > 0:
            self._wakeup.wait(min(left, beat_s))
            self._notifier.beat()
        reload, self._reload = self._reload, False
        return reload

    def close(self) -> None:
        """Stop listening."""
        self._wakeup.close()

    def _end(self, *_: object) -> None:
        self.ended = True

    def _reread(self, *_: object) -> None:
        self._reload = True


def _stale_s(config: Config) -> float:
    """Return the age from which the endpoint no longer shows what the agent published last."""
    return STALE_S + 2 * config.agent_interval_s


def _endpoint_settings(config: Config) -> tuple[str, dict[str, str], float]:
    return config.listen, agent_labels(config), _stale_s(config)


class _Service:
    """An agent, its HTTP endpoint, and their configuration."""

    def __init__(
        self, config: Config, run_fd: int, watching: bool, overridden: Collection[str]
    ) -> None:
        self.config = config
        self._overridden, self._process = overridden, this_process()
        self._settings = texts(config, AGENT, overridden)
        self._refused, self._readings = "", 1
        self._run_fd = run_fd
        gid = group_id(config.prom_group)
        if gid is not None:  # before the endpoint's child gives up its rights
            set_access(run_fd, gid)
        self._endpoint = self._listen(config)
        try:
            self.agent = Agent(config, run_fd, watching=watching)
        except OSError:
            self._hang_up()
            raise

    def _listen(self, config: Config) -> Endpoint | None:
        if not config.listen:
            return None
        return Endpoint(config.listen, self._run_fd, agent_labels(config), _stale_s(config))

    def _hang_up(self) -> None:
        if self._endpoint:
            self._endpoint.close()
            self._endpoint = None

    def run_pass(self, wait_s: float) -> None:
        """Make a pass, and say with which settings."""
        self.agent.run_pass(wait_s)
        trouble = self.agent.trouble
        note = Note(self._process, self._settings, self._refused, trouble, self._readings)
        self.agent.note(agent_note(self.config), note)

    def keep(self) -> None:
        """Restart the endpoint if it has ended."""
        if endpoint := self._endpoint:  # publishing goes on without it; the next pass tries again
            self.agent.attempt("start the HTTP endpoint", endpoint.keep)

    def reload(self, reread: Callable[[], Config]) -> None:
        """Use the present configuration; why an invalid one is not used is logged and noted."""
        self._readings += 1
        try:
            new = reread()
            if new.run_dir != self.config.run_dir:
                raise InspectorError("run_dir has changed: restart the agent")
            group_id(new.prom_group)
            self._listen_anew(new)
        except InspectorError as err:
            log.warning("the old configuration stays in use: %s", err)
            self._refused = str(err)
            return
        self._refused = ""
        self.agent.configure(new)
        if new.prom_group != self.config.prom_group and self._endpoint:
            self._endpoint.change(agent_labels(new), _stale_s(new))  # its child needs the group
        self.config = new
        self._settings = texts(new, AGENT, self._overridden)
        log.info("the configuration was read again")

    def _listen_anew(self, new: Config) -> None:
        """Listen on a new address, if it or the labels have changed.

        Raises:
            InspectorError: the new address cannot be used; the old one is kept.
        """
        old = self.config
        if _endpoint_settings(new) == _endpoint_settings(old):
            return
        if new.listen == old.listen and self._endpoint:
            # `keep` starts the child again.
            self._endpoint.change(agent_labels(new), _stale_s(new))
            return
        endpoint = self._listen(new)
        self._hang_up()
        self._endpoint = endpoint

    def close(self, withdraw: bool) -> None:
        """End; `withdraw`: also remove everything that was published."""
        self._hang_up()
        if withdraw:
            self.agent.stop()
        self.agent.close()


def run_agent(
    config: Config,
    once: bool,
    reread: Callable[[], Config] | None = None,
    overridden: Collection[str] = (),
) -> None:
    """Publish and collect each agent_interval until SIGTERM or SIGINT; at SIGHUP call `reread`.

    It also ends if a directory was removed or made again, because it would keep using the old one.
    The unit starts it again, and makes what is missing. `once`: a single pass without the HTTP
    endpoint, and what it publishes stays. Otherwise everything published is removed, however this
    ends, because nobody would renew it. `overridden`: settings that the command line says.

    systemd hears READY after the first pass, and WATCHDOG after each pass and in the pauses. The
    agent hangs if one pass takes longer than the watchdog's time; then SIGABRT writes where.

    Raises:
        InspectorError: a directory is missing or was replaced, another agent uses it, or the
            address of `listen` cannot be used.
    """
    notifier = Notifier()
    if not once:
        faulthandler.enable()
    with closing(_Signals(reread is not None, notifier)) as signals, _run_dir(config) as run_fd:
        service = _Service(
            replace(config, listen="") if once else config, run_fd, not once, overridden
        )
        forget_collection(run_fd)
        opened = _opened(config, run_fd)
        finished = False
        try:
            if once:
                service.agent.run_pass(CHILD_S)
            else:
                service.run_pass(HANDOVER_WAIT_S)
            notifier.ready()
            while not once and not signals.ended:
                if signals.wait(service.config.agent_interval_s) and reread:
                    service.reload(reread)
                if signals.ended:
                    break
                if _opened(config, run_fd) != opened:
                    raise InspectorError(
                        f"{config.run_dir}: its directories were replaced; start the agent again"
                    )
                service.keep()
                service.run_pass(HANDOVER_WAIT_S)
                notifier.beat()
            finished = True
            if not once:
                service.agent.forgive()
        finally:
            notifier.stopping()
            service.close(withdraw=not (once and finished))


def run_collect(config: Config, clock: Clock = SYSTEM_CLOCK) -> Backlog:
    """Sweep and collect once, for a site without the agent; return which ended jobs are left.

    Raises:
        InspectorError: the run directory is missing or unusable, or an agent uses it.
    """
    tally = Tally()
    with _run_dir(config) as run_fd:
        collector = Collector(run_fd, config, tally, AtWork(run_fd), clock=clock)
        try:
            sweeper = Sweeper(run_fd, config, tally, clock)
            try:
                sweeper.run_once()
            finally:
                sweeper.close()
            deadline = clock.monotonic_s() + COLLECT_S
            collector.run_pass(CHILD_S)
            while collector.wants_more and clock.monotonic_s() < deadline:
                collector.run_pass(CHILD_S)
            note_collection(run_fd)
            return collector.left()
        finally:
            collector.close()
