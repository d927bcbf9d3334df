#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# 50-nccl-inspector.sh - give each job a directory that its tasks may write into.
#
# slurmd runs this as root before a job's first task, and drains the node if it exits non-zero. So
# it exits 0 whatever happens: it logs, and the job runs without metrics. What comes from the job
# is hostile: numbers are checked, texts only copied. packaging/doc/internals.md has the contract.
trap 'exit 0' EXIT HUP INT TERM
set -uo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
readonly run_dir=${NCCL_INSPECTOR_RUN_DIR:-/run/nccl-inspector} # slurmd never sets it: for tests
readonly job=${SLURM_JOB_ID-} uid=${SLURM_JOB_UID-} mode=${SPANK_NCCL_INSPECTOR-}
gid=${SLURM_JOB_GID-} restart=${SLURM_JOB_RESTART_COUNT-} boot='' manifest='' old=''

give_up() {
	local line="job ${job:0:20}: $1"
	line=${line//[^ -~]/?}
	printf '%s\n' "nccl-inspector-prolog: $line" >&2
	timeout 1 logger -t nccl-inspector-prolog -p daemon.warning -- "$line" 2>/dev/null
	exit 0
}

# No sign, no leading zero (octal to some), not -1 (to chown: change nothing).
is_number() {
	[[ $1 =~ ^(0|[1-9][0-9]{0,9})$ && $1 != 4294967295 ]]
}

# mkdir -p gives the upper directory what umask leaves: 0711. The + keeps chown from asking a
# directory service for a user of that name. The manifest's `end` comes last: it says "whole".
# shellcheck disable=SC2174
make_dir() {
	umask 066 && mkdir -p -m 0700 -- "$dir/raw" &&
		chown "+$uid${gid:+:+$gid}" -- "$dir/raw" && umask 022 &&
		printf '%send\n' "$manifest" >"$dir/manifest"
}

[[ $mode == off ]] && exit 0
[[ $mode =~ ^(prom|report|)$ ]] || give_up "unknown SPANK_NCCL_INSPECTOR: ${mode:0:40}"
is_number "$job" || give_up "SLURM_JOB_ID is not a number"
is_number "$uid" || give_up "SLURM_JOB_UID is not a number"
is_number "$gid" || gid=
is_number "$restart" || restart=0
[[ -d $run_dir/jobs ]] || give_up "no metrics: there is no $run_dir/jobs"
readonly dir=$run_dir/jobs/$job now=${EPOCHREALTIME:-$(date +%s.%6N)} # bash 4 needs date
read -r boot </proc/sys/kernel/random/boot_id
same=$'\n'restart=$restart$'\n'boot_id=$boot$'\n'
[[ -f $dir/manifest ]] && IFS= read -rd '' old <"$dir/manifest"
[[ $old == *$'\n'"uid=$uid"$'\n'*"$same"*$'\nend\n' ]] && exit 0
[[ ! -e $dir ]] || mv -T -- "$dir" "$run_dir/ended/$job.${now/./}000" ||
	give_up "no metrics: cannot move the old $dir away"
for line in format=1 "job_id=$job" "uid=$uid" "gid=$gid" "user=${SLURM_JOB_USER-}" \
	"account=${SLURM_JOB_ACCOUNT-}" "partition=${SLURM_JOB_PARTITION-}" "node=${SLURMD_NODENAME-}" \
	"nodelist=${SLURM_JOB_NODELIST-${SLURM_NODELIST-}}" "num_nodes=${SLURM_JOB_NUM_NODES-}" \
	"cluster=${SLURM_CLUSTER_NAME-}" "gpus=${SLURM_JOB_GPUS-}" "restart=$restart" "boot_id=$boot" \
	"het_job_id=${SLURM_HET_JOB_ID-}" "work_dir=${SLURM_JOB_WORK_DIR-}" "mode=$mode" \
	"start=${now%.*}"; do
	manifest+=${line//[[:cntrl:]]/?}$'\n'
done
reason=$(make_dir 2>&1) || { rm -rf -- "$dir"; give_up "no metrics: $reason"; }
