#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 50-nccl-inspector.sh - create a directory for each job in which its tasks may write.
#
# The SPANK plugin runs it as root before a job's first task. A site may run it as Prolog instead;
# then the node drains if it exits non-zero. So it always exits 0: after an error, which it logs, the
# job runs without metrics. Values from the job are not trusted: numbers are checked, texts only
# copied. packaging/doc/internals/run-directory.md describes the directory. It is plain sh because
# every job waits for it, and dash starts five times faster than bash.
trap 'exit 0' EXIT HUP INT PIPE TERM
set -fu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
run_dir=${NCCL_INSPECTOR_TEST_RUN_DIR:-/run/nccl-inspector} # only tests set the variable
mode=${SPANK_NCCL_INSPECTOR-} job=${SLURM_JOB_ID-} wanted=yes
if [ "$mode" = off ] || [ -e "$run_dir/control/disabled" ]; then
	# Move an earlier attempt's directory away: this attempt may still measure something later.
	[ -e "$run_dir/jobs/$job" ] || exit 0
	wanted=''
fi

uid=${SLURM_JOB_UID-} gid=${SLURM_JOB_GID-} boot='' manifest='' nl='
'
give_up() {
	line=$(printf 'job %.20s: %.800s' "$job" "$1" | tr -c ' -~' '?')
	printf 'nccl-inspector-prolog: %s\n' "$line" >&2
	timeout 1 logger -t nccl-inspector-prolog -p daemon.warning -- "$line" 2>/dev/null
	exit 0
}

# No sign, no leading zero (to some programs octal), and not -1 (chown would change nothing).
is_number() {
	case $1 in '' | *[!0-9]* | 0?* | ???????????* | 4294967295) return 1 ;; esac
}

# mkdir -p gives the upper directory what umask leaves: 0711. The + keeps chown from asking a
# directory service for a user of that name. `end` comes last and marks a complete manifest.
# shellcheck disable=SC2174
make_dir() {
	umask 066 && mkdir -p -m 0700 -- "$dir/raw" &&
		chown "+$uid${gid:+:+$gid}" -- "$dir/raw" && umask 022 &&
		{ printf '%send\n' "$manifest" 2>&- >"$dir/manifest" || ! echo "is $run_dir full?"; }
}

# Moves a directory of another attempt or boot, or an incomplete one, to an unused name in ended/.
# If the directory is complete and of this attempt, exits.
move_old() {
	old=$(cat -- "$dir/manifest" 2>/dev/null && echo .)
	same="${nl}restart=$restart${nl}boot_id=$boot${nl}job_start=$begun$nl"
	case $old in *"${nl}uid=$uid$nl"*"$same"*"${nl}end$nl.") exit 0 ;; esac
	if [ -L "$dir" ] || [ ! -d "$dir" ]; then give_up "$dir is not a directory"; fi
	to=$now
	while [ -e "$run_dir/ended/$job.$to" ]; do to=$((to + 1)); done
	# The agent may have moved it meanwhile.
	reason=$(mv -T -- "$dir" "$run_dir/ended/$job.$to" 2>&1) || [ ! -e "$dir" ] ||
		give_up "no metrics: $reason"
}

case $mode in prom | json | prom+json | report | off | '') ;; *) give_up "unknown SPANK_NCCL_INSPECTOR: $(printf %.40s "$mode")" ;; esac
is_number "$job" || give_up "SLURM_JOB_ID is not a number"
is_number "$uid" || give_up "SLURM_JOB_UID is not a number"
is_number "$gid" || gid=
restart=${SLURM_JOB_RESTART_COUNT-} begun=${SLURM_JOB_START_TIME-} ends=${SLURM_JOB_END_TIME-}
is_number "$restart" || restart=0
is_number "$begun" || begun=''; is_number "$ends" || ends='' # from Slurm 23.02 on
[ -d "$run_dir/jobs" ] || give_up "no metrics: there is no $run_dir/jobs"
dir=$run_dir/jobs/$job
# shellcheck disable=SC3028 # bash 5 has it; others ask date
now=${EPOCHREALTIME:-$(date +%s.%6N)}
now=${now%.*}${now#*.}000
case $now in 0* | *[!0-9]* | ????????????????????*) now=1 ;; esac
read -r boot </proc/sys/kernel/random/boot_id
if [ -e "$dir" ] || [ -L "$dir" ]; then move_old; fi
[ -n "$wanted" ] || exit 0
for line in format=1 "job_id=$job" "uid=$uid" "gid=$gid" "user=${SLURM_JOB_USER-}" \
	"account=${SLURM_JOB_ACCOUNT-}" "partition=${SLURM_JOB_PARTITION-}" "qos=${SLURM_JOB_QOS-}" "node=${SLURMD_NODENAME-}" \
	"nodelist=${SLURM_JOB_NODELIST-${SLURM_NODELIST-}}" "num_nodes=${SLURM_JOB_NUM_NODES-}" \
	"cluster=${SLURM_CLUSTER_NAME-}" "gpus=${SLURM_JOB_GPUS-}" "restart=$restart" "boot_id=$boot" \
	"job_start=$begun" "job_end=$ends" "het_job_id=${SLURM_HET_JOB_ID-}" "work_dir=${SLURM_JOB_WORK_DIR-}" "mode=$mode" \
	"start=${now%?????????}"; do
	case $line in *[[:cntrl:]]*) line=$(printf %s "$line" | tr '[:cntrl:]' '?') ;; esac
	manifest=$manifest$line$nl
done
# Only after a failure it is done a second time, to get the reason: that needs a subshell, which
# would delay every job.
make_dir >/dev/null 2>&1 || reason=$(make_dir 2>&1) || { rm -rf -- "$dir" 2>/dev/null; give_up "no metrics: $reason"; }
