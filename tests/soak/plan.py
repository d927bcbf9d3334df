"""Which jobs a soak submits: sizes, users, modes, arrays, requeues, and jobs that mean harm."""

from dataclasses import dataclass
from random import Random

from tests.sandbox import JOB_USER, OTHER_USER, Cluster
from tests.support.sandbox import jobs

# Every kind of file that a user could put where the plugin's are; $d is raw/.
ATTACKS = {
    "random boxes": "for n in 1 2 3; do head -c 2965504 /dev/urandom "
    ">$d/nccl_inspector_0_$n.box; done",
    "links": "ln -s /etc/shadow $d/nccl_inspector_0_1.box; ln -s . $d/nccl_inspector_mark; "
    "for n in $(seq 60); do ln $d/x $d/nccl_inspector_0_9$n.box; done",
    "pipes": "mkfifo $d/nccl_inspector_0_1.box $d/nccl_inspector_mark "
    "$d/nccl_inspector_metrics_unknown_0_1.prom",
    "full tmpfs": "head -c 2000000000 /dev/zero >$d/full; for n in $(seq 3000); do : >$d/f$n; done",
    "odd clocks": "for f in $d/*; do touch -d 1970-01-02 $f; done; : >$d/later; "
    "touch -d 2099-01-01 $d/later $d",
    "page": 'yes \'nccl_bus_bandwidth_gbs{slurm_job_id="1",node="n4"} 1\' | head -n 20000 '
    ">$d/nccl_inspector_metrics_unknown_0_1.prom; echo '# EOF' "
    ">>$d/nccl_inspector_metrics_unknown_0_1.prom",
    "mark": "printf 'throughput=1e15\\nunit=MFU\\nend\\n' >$d/nccl_inspector_mark; chmod 0 $d",
    "gone": "rm -rf ${d:?}/*; rmdir $d",
    "slow output": "for n in $(seq 300); do printf 'throughput per GPU: ~%4000s\\n' x; done",
    "names": "for n in $(seq 300); do : >\"$d/nccl_inspector_$(printf '\\033[2J%d' $n).box\"; done",
}
NASTY_NAME = "x=?utf-8?q?a?=\x1b[31m<script>"


@dataclass(frozen=True, kw_only=True)
class Spec(jobs.Spec):
    """One submission. `work`: standin, true or the name of an attack."""

    user: str

    @property
    def ranks(self) -> int:
        """Of one job."""
        return self.nodes * self.tasks_per_node

    @property
    def measured(self) -> bool:
        """Whether there must be a report that can be checked against the stand-in's log."""
        return self.work == "standin" and self.mode in ("prom", "report")

    def submit(self, cluster: Cluster) -> int:
        """Submit it; of an array the number of the array."""
        words = (*self.words(), "--mem=400", "--requeue")
        return jobs.submit(cluster, *words, script=self._script(cluster), user=self.user)

    def _script(self, cluster: Cluster) -> str:
        if self.work == "true":
            return "srun true"
        line = jobs.standin(cluster, "--steps", str(self.steps), *jobs.QUICK)
        # Attempts of one job log to one place; that of the last is looked at.
        run = f"rm -rf oplog.$SLURM_JOB_ID\nsrun --kill-on-bad-exit=1 {line}"
        if self.work == "standin":
            return run
        attack = ATTACKS[self.work].replace('"', '\\"').replace("$", "\\$")
        attack = f"d=\\$NCCL_INSPECTOR_RUN_DIR; {attack}"
        # The attack finds the step's directory in use.
        return f'{run} & sleep 1; srun --overlap -N1 -n1 sh -c "{attack}"; wait'


def draw(dice: Random, number: int) -> Spec:
    """Return a random submission."""
    work = dice.choices(("standin", "true", dice.choice([*ATTACKS])), (7, 1, 2))[0]
    is_attack = work in ATTACKS
    return Spec(
        name=f"soak-{number}" + (NASTY_NAME if is_attack else ""),
        user=OTHER_USER if is_attack else dice.choice((JOB_USER, JOB_USER, OTHER_USER)),
        work=work,
        mode="prom" if is_attack else dice.choices(("prom", "report", "off", ""), (5, 3, 1, 1))[0],
        nodes=dice.choices((1, 2, 3), (4, 3, 1))[0],
        tasks_per_node=dice.choice((1, 2)),
        tasks_of_array=dice.choice((2, 3)) if not is_attack and dice.random() < 0.1 else 1,
        steps=dice.choice((2, 20, 60, 200)),
    )
