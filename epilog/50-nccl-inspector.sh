#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# 50-nccl-inspector.sh - take a job's directory away: the agent collects it from ended/.
#
# slurmd runs this as root after a job's last task, and drains the node if it exits non-zero. So it
# exits 0 whatever happens. It goes by the directory, never by a variable that a user can inject:
# without one (mode off, no prolog, a second run) it has nothing to do and says nothing.
trap 'exit 0' EXIT HUP INT TERM
set -uo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
readonly run_dir=${NCCL_INSPECTOR_RUN_DIR:-/run/nccl-inspector} # slurmd never sets it: for tests
readonly job=${SLURM_JOB_ID-}

log() {
	local line="job ${job:0:20}: $1"
	line=${line//[^ -~]/?}
	printf '%s\n' "nccl-inspector-epilog: $line" >&2
	timeout 1 logger -t nccl-inspector-epilog -p daemon.warning -- "$line" 2>/dev/null
}

if [[ ! $job =~ ^(0|[1-9][0-9]{0,9})$ ]]; then
	log "SLURM_JOB_ID is not a number"
	exit 0
fi
now=${EPOCHREALTIME:-$(date +%s.%6N)} # bash 4 has no such variable
if [[ -d $run_dir/jobs/$job ]]; then
	reason=$(mv -T -- "$run_dir/jobs/$job" "$run_dir/ended/$job.${now/./}000" 2>&1) ||
		log "the job's files stay: $reason"
fi
# After the rename: the agent looks for the directory again once it has published a file.
if [[ -e $run_dir/prom/$job.prom ]]; then
	reason=$(rm -f -- "$run_dir/prom/$job.prom" 2>&1) || log "the job's series stay: $reason"
fi
