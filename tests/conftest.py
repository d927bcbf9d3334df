"""The cluster that all tests of a session share."""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.sandbox import Cluster
from tests.sandbox.errors import ClusterError
from tests.sandbox.host import missing
from tests.sandbox.layout import check_reachable
from tests.support.object_store import ObjectServer, ObjectSite, make_site, object_server
from tests.support.postgres import Postgres, server
from tests.support.repository import REPO
from tests.support.sandbox.watched_job import WatchedJob, watch_job
from tests.tools.turns import Turn
from tests.tools.verified import SESSION


def pytest_configure() -> None:
    """Refuse a checkout that other users cannot reach, because many commands run as another user.

    Also take the signals back that a shell's `&` or nohup has switched off, because the tests send
    them; and begin with the usual umask, because servers of the session are for other users, too.
    """
    os.umask(0o022)
    if os.geteuid() == 0:
        try:
            check_reachable(REPO / "tests")
        except ClusterError as err:
            raise pytest.UsageError(f"{err}, for example below /srv") from err
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """CI has less time than the long tests take: commits take turns (.ci/run)."""
    parser.addoption("--turn", type=Turn.of, help="K/N: of the long tests the K-th part of N")
    parser.addoption("--case-turn", type=Turn.of, help="the same, of the cases")
    parser.addoption("--shuffle", type=int, help="a number that says in which order tests run")


# What starts a service that `make test` does not install.
LONG_FIXTURES = {"object_server_of_session"}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out those whose turn it is not. What needs more than `make test` installs is long."""
    for item in items:
        if not LONG_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
    turn: Turn | None = config.getoption("turn")
    case_turn: Turn | None = config.getoption("case_turn")
    SESSION.part = bool(case_turn)

    def has_turn(item: pytest.Item) -> bool:
        case = item.get_closest_marker("case")
        if case:  # those of a line of the page together
            return not case_turn or case_turn.has(repr(case.args))
        return (
            not turn
            or not item.get_closest_marker("long")
            or bool(item.get_closest_marker("divides"))
            or turn.has(item.nodeid.partition("[")[0])
        )

    left_out = [item for item in items if not has_turn(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if (seed := config.getoption("shuffle")) is not None:
        files = sorted({item.path for item in items})
        place = {path: Random(f"{seed} {path.name}").random() for path in files}  # noqa: S311
        own = {item: Random(f"{seed} {item.nodeid}").random() for item in items}  # noqa: S311
        items.sort(key=lambda item: (place[item.path], str(item.path), own[item]))


@pytest.fixture(autouse=True)
def umask_stays() -> Iterator[None]:
    """A test that changes the umask for good breaks others, far from it: agents get it from us."""
    before = os.umask(0o022)
    yield
    after = os.umask(before)
    assert after == 0o022, f"left behind: umask {after:03o}"


@pytest.fixture(autouse=True)
def garbage_is_collected() -> Iterator[None]:
    """`report` stops that for its process, and main() of such a process ends it at once."""
    yield
    gc.enable()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users than root may enter, unlike tmp_path: each session of pytest
    that starts shuts the one above all of those."""
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-test-", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of PostgreSQL."""
    with server() as found:
        yield found


@pytest.fixture(scope="session")
def object_server_of_session() -> Iterator[ObjectServer]:
    if os.geteuid() != 0:
        pytest.skip("Swift is started by root")
    with object_server() as found:
        yield found


@pytest.fixture
def object_site(object_server_of_session: ObjectServer, open_path: Path) -> ObjectSite:
    """An empty bucket of an object store, and the file with the keys to it."""
    return make_site(object_server_of_session, open_path)


@pytest.fixture(scope="session")
def cluster_dir() -> Path:
    """A new state directory's path: short, unpredictable, and open to job users, unlike tmp_path.

    Without root or packages the test is skipped; in CI that is a failure.
    """
    if reason := missing(accounting=False):  # a cluster with accounting says what it lacks
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(tempfile.mkdtemp(prefix="nccl-inspector-test-", dir="/tmp"))


@pytest.fixture(scope="session")
def shared_cluster(cluster_dir: Path) -> Iterator[Cluster]:
    """The session's cluster, as the last test left it."""
    # SIGTERM ends the session as Ctrl-C does, or the cluster would stay behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = Cluster.up(cluster_dir)
    SESSION.slurm = cluster.layout.slurm
    try:
        yield cluster
    finally:
        cluster.down()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster; afterwards without jobs, its nodes idle, its settings put back."""
    try:
        yield shared_cluster
    finally:
        shared_cluster.reset()


@pytest.fixture
def healthy_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster, for tests after which no node may be drained."""
    yield cluster
    assert not [name for name, state in cluster.node_states().items() if state.drained]


@pytest.fixture(scope="session")
def watched_job(shared_cluster: Cluster) -> WatchedJob:
    """One job with a planted slow rank, run to its end; several tests look at it."""
    try:
        return watch_job(shared_cluster)
    finally:
        shared_cluster.reset()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note how the marked cases end, for the page of what was verified."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    mark = item.get_closest_marker("case")
    if mark and (report.when == "call" or report.outcome != "passed"):
        section, words = mark.args
        SESSION.add(section, words, report.outcome)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep what the session has seen, so that the page can be made of several.

    A turn may leave out all that this run would have had; that is no failure.
    """
    SESSION.write()
    turns = session.config.getoption("turn") or session.config.getoption("case_turn")
    if turns and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
