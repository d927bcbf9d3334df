# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector ready`: suspects among the nodes of an allocation, for every user, in 2 s."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nccl_inspector.controller.outcome import DONE
from nccl_inspector.controller.suspects import list_suspects
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.store.card_rows import CardRows, rows_of
from nccl_inspector.store.index import export_user, put, writing
from nccl_inspector.store.place import IndexPlace, index_of
from nccl_inspector.store.suspects import SUSPECTS
from tests.support.command_line import COMMAND
from tests.support.stored_cards import UID, card, communicator

STRANGER_UID, ADMINS_GID = 4713, 9999
NODES = tuple(f"n{at}" for at in range(1, 9))
SLOW = "n3"


def job_on(pair: tuple[str, str], job_id: int, user: str, uid: int, slow: str) -> CardRows:
    """Return the rows of a job on two nodes, at 70 % of the bandwidth with the slow one."""
    gbs = (70.0 if slow in pair else 100.0) * (1 + 0.002 * (job_id % 5))
    one = card(
        job_id, gbs=gbs, nodes=",".join(pair), communicators=(communicator(nodes=pair),),
        user=user, uid=uid, end_s=1000.0 + job_id,
    )  # fmt: skip
    return rows_of(one)


@pytest.fixture
def config(open_path: Path) -> Config:
    """A store as the service leaves it: six users had jobs on each pair of neighbours."""
    store = open_path / "store"
    store.mkdir()
    store.chmod(0o711)
    with writing(IndexPlace(store), ADMINS_GID) as index:
        job_id = 0
        for number in range(6):
            for at in range(len(NODES)):
                job_id += 1
                pair = NODES[at], NODES[(at + 1 + number) % len(NODES)]
                if pair[0] != pair[1]:
                    put(index, job_on(pair, job_id, f"u{number}", UID + 10 + number, SLOW))
    conf = open_path / "x.conf"
    conf.write_text(f"store_dir = {store}\n")
    conf.chmod(0o644)
    return parse_config(f"store_dir = {store}", "x")


def ask(
    config: Config, *words: str, uid: int = STRANGER_UID, **more: str
) -> subprocess.CompletedProcess[str]:
    """What the command says to a user in a job on these nodes, in a process of their own."""
    environment = {name: value for name, value in os.environ.items() if "SLURM" not in name}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "SLURM_JOB_NODELIST": "n[2-4]"} | more
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    conf = config.store_dir.parent / "x.conf"
    return subprocess.run(
        [*user, *COMMAND, "ready", "--conf", conf, *words],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def publish(config: Config, now_s: float | None = None) -> None:
    outcome = list_suspects(config, time.time() if now_s is None else now_s)
    assert outcome.word == DONE, outcome.detail


def test_a_user_without_any_job_is_told_which_of_their_nodes_is_slow(config: Config) -> None:
    publish(config)
    done = ask(config)
    assert done.returncode == 1, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith(f"SLOW LATELY  {SLOW}: its jobs are slow beside their like (-")
    assert last == f"1 of 3 nodes were slow lately: {SLOW}"


def test_nodes_that_were_not_slow_let_the_job_begin(config: Config) -> None:
    publish(config)
    done = ask(config, SLURM_JOB_NODELIST="n[4-8]")
    assert (done.returncode, done.stdout) == (0, "5 nodes: none was slow lately\n"), done.stderr


def test_the_list_for_all_users_names_no_job_and_no_user(config: Config) -> None:
    publish(config)
    path = config.store_dir / SUSPECTS
    assert path.stat().st_mode & 0o777 == 0o644
    (row,) = json.loads(path.read_text())["suspects"]
    assert row["node"] == SLOW
    assert set(row) == {
        "node", "slow", "bandwidth_change", "jobs", "users", "named_in_jobs", "named_by_users",
    }  # fmt: skip
    assert all(isinstance(value, int | float | bool) for key, value in row.items() if key != "node")


def test_one_user_alone_cannot_make_a_node_a_suspect_for_others(config: Config) -> None:
    with writing(index_of(config), ADMINS_GID) as index:
        for job_id in range(1000, 1400):
            put(index, job_on(("n7", "n8"), job_id, "mallory", UID, "n8"))
    publish(config)
    done = ask(config, SLURM_JOB_NODELIST="n[6-8]")
    assert done.returncode == 0, done.stdout


def test_own_jobs_accuse_a_node_to_their_user(config: Config) -> None:
    with writing(index_of(config), ADMINS_GID) as index:
        for job_id in range(1000, 1200):
            at = job_id % 7
            put(index, job_on((NODES[at], NODES[at + 1]), job_id, "amy", UID, "n7"))
    export_user(index_of(config), UID, ADMINS_GID)
    publish(config)
    done = ask(config, uid=UID, SLURM_JOB_NODELIST="n[6-8]")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SLOW LATELY  n7: your jobs are slow on it (-" in done.stdout


def test_a_node_without_what_reports_need_still_tells_the_listed_suspects(
    config: Config, tmp_path: Path
) -> None:
    publish(config)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in ('sqlalchemy', 'numpy', 'psycopg'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    tmp_path.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = ask(config, uid=os.getuid(), PYTHONPATH=path, SLURM_JOB_NODELIST="n[4-8]")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "not known    your own jobs: slurm-nccl-inspector-tools is not installed on this host",
        "5 nodes: nothing is known against them",
    ]
    assert ask(config, uid=os.getuid(), PYTHONPATH=path).returncode == 1, "a node is a suspect"


@pytest.mark.parametrize("text", ["[]", '{"format": 2}', '{"format": 1, "made_s": -1}'])
def test_a_list_that_cannot_be_read_lets_the_job_begin(config: Config, text: str) -> None:
    (config.store_dir / SUSPECTS).write_text(text)
    (config.store_dir / SUSPECTS).chmod(0o644)
    done = ask(config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("not known    ")
    assert done.stdout.endswith("3 nodes: nothing is known against them\n")


def test_an_old_list_is_not_used(config: Config) -> None:
    publish(config, time.time() - 2 * 86400)
    done = ask(config)
    assert done.returncode == 0
    assert "the list of suspects is 2 d" in done.stdout


@pytest.mark.long
def test_a_store_that_hangs_delays_the_job_by_two_seconds(config: Config) -> None:
    (config.store_dir / SUSPECTS).unlink(missing_ok=True)
    users = config.store_dir / "users"
    users.mkdir()
    os.mkfifo(users / f"{STRANGER_UID}.db")  # opening it waits for a writer
    os.chown(users / f"{STRANGER_UID}.db", STRANGER_UID, STRANGER_UID)
    users.chmod(0o711)
    done = ask(config)
    assert done.returncode == 0
    assert "not known    no answer in 2 s" in done.stdout


@pytest.mark.long
def test_a_job_that_was_requeued_often_enough_begins_all_the_same(config: Config) -> None:
    publish(config)
    assert ask(config, SLURM_RESTART_COUNT="2").returncode == 1
    done = ask(config, SLURM_RESTART_COUNT="3")
    assert (done.returncode, done.stderr) == (0, "requeued 3 times already: exit status 0\n")
    assert ask(config, "--max-requeues", "5", SLURM_RESTART_COUNT="3").returncode == 1


def test_in_a_prolog_it_says_nothing_and_succeeds(config: Config) -> None:
    publish(config)
    done = ask(config, SLURM_SCRIPT_CONTEXT="prolog_slurmd")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "nccl-inspector: not for a prolog: nothing is said\n"


def test_json_has_the_same(config: Config) -> None:
    publish(config)
    found = json.loads(ask(config, "--json").stdout)
    assert (found["ready"], found["nodes"]) == (False, 3)
    assert [one["node"] for one in found["suspects"]] == [SLOW]
