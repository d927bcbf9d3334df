# SPDX-License-Identifier: Apache-2.0
"""The life of the controller service: wait until it is the one that works, and make passes."""

import faulthandler
import logging
import signal
import time

from nccl_inspector.controller.children import Children
from nccl_inspector.controller.duty import Duty, alone, duty_on
from nccl_inspector.controller.passes import PASS_S, Controller, reports_at_once
from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.report_child import Makers, make_report
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import (
    CONTROLLER,
    Note,
    controller_note,
    texts,
    this_process,
    write_note,
)
from nccl_inspector.store.place import index_of
from nccl_inspector.system.child_process import SHORT
from nccl_inspector.system.notify import Notifier
from nccl_inspector.system.wakeup import Wakeup

LOOK_S = 1.0  # between looks whether it is our turn
NOTE_AGAIN_S = 30.0
log = logging.getLogger("nccl-inspector-controller")


class _Service:
    """What the loop and its signals share."""

    def __init__(self, config: Config, makers: Makers, queue: Queue) -> None:
        self.stopping = False
        self._config, self._makers, self._queue = config, makers, queue
        self._notifier = Notifier()
        self._duty: Duty = duty_on(queue, config)
        self._children = Children(beat=self._beat)
        self._said = ""
        self._note_next_s: float | None = 0.0  # of time.monotonic(); None: it is written

    def _note(self) -> None:
        """Say which settings are in use; try again later if that cannot be written."""
        if self._note_next_s is None or time.monotonic() < self._note_next_s:
            return
        note = Note(this_process(), texts(self._config, CONTROLLER))
        try:
            write_note(controller_note(self._config), note, 0o640)
            self._note_next_s = None
        except OSError as err:
            self._say(f"cannot note its settings: {err}")
            self._note_next_s = time.monotonic() + NOTE_AGAIN_S

    def _beat(self) -> None:
        self._note()
        self._notifier.beat()
        self._duty.beat()

    def _may_work(self) -> bool:
        return self._duty.is_held and not self.stopping

    def stop(self, _number: int, _frame: object) -> None:
        """Handle a signal: end after what is done now."""
        self.stopping = True

    def _say(self, words: str) -> None:
        """Log who works, if that has changed."""
        if words != self._said:
            log.info("%s", words)
            self._said = words

    def run(self) -> int:
        """Serve until a signal comes; return how many ended jobs are left.

        systemd hears READY once the queue is open, because the first pass may take long to make
        reports, and WATCHDOG from the loop, also while it waits for a child or for its turn.
        """
        wakeup = Wakeup()
        self._note()
        self._notifier.ready()
        try:
            left = 0
            while not self.stopping:
                self._beat()
                if self._duty.is_held:
                    self._say(f"the service works on {self._config.controller_dir}")
                    left = self._work(wakeup)
                else:
                    if self._duty.words:
                        self._say(f"waiting: {self._duty.words}")
                    wakeup.wait(LOOK_S)
            self._notifier.stopping()
            return left
        finally:
            self._duty.close()
            wakeup.close()

    def _work(self, wakeup: Wakeup) -> int:
        """Make passes while we may; what another service has noted meanwhile is read anew."""
        controller = Controller(
            self._config, self._queue,
            lambda due: make_report(due, self._config, self._makers),
            self._children, self._may_work, reports_at_once(),
        )  # fmt: skip
        left = 0
        while self._may_work():
            try:
                left = controller.one_pass()
            except OSError as err:
                if err.errno not in SHORT:
                    raise
                self._say(f"a pass ended early: {err}")
            self._rest(wakeup, 0.0 if controller.is_behind else PASS_S)
        return left

    def _rest(self, wakeup: Wakeup, seconds: float) -> None:
        """Wait until the next pass, or until a signal comes or another service is to work."""
        until_s = time.monotonic() + seconds
        while True:
            self._beat()
            self._children.collect()
            if not self._children.left:  # one that hangs may still write
                self._duty.give_way()
            left_s = until_s - time.monotonic()
            if not self._may_work() or wakeup.wait(max(0.0, min(left_s, LOOK_S))) or left_s <= 0:
                return


def serve(config: Config, makers: Makers) -> int:
    """Serve until SIGTERM or SIGINT; return how many ended jobs are left.

    Raises:
        InspectorError: there is no queue, or a setting is missing.
    """
    index_of(config).check()
    queue = Queue(config.controller_dir)
    try:
        service = _Service(config, makers, queue)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, service.stop)
        faulthandler.enable()
        return service.run()
    finally:
        queue.close()


def work_once(config: Config, makers: Makers) -> int:
    """Make one pass, without the service; return how many ended jobs are left."""
    with alone(config) as queue:
        controller = Controller(
            config, queue, lambda due: make_report(due, config, makers),
            at_the_same_time=reports_at_once(),
        )  # fmt: skip
        return controller.one_pass(at_once=True)
