#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 50-nccl-inspector.sh - take a job's directory away: the agent collects it from ended/.
#
# The SPANK plugin runs this as root after a job's last task, or slurm.conf's Epilog does: then the
# node drains if it exits non-zero. So it exits 0 whatever happens. It goes by the directory, never
# by a variable that a user can inject: without one (mode off, no prolog, a second run) it has
# nothing to do and says nothing.
# Plain sh, for every job waits for it: dash starts in a fifth of bash's time.
trap 'exit 0' EXIT HUP INT PIPE TERM
set -fu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
run_dir=${NCCL_INSPECTOR_TEST_RUN_DIR:-/run/nccl-inspector} # slurmd never sets it: for tests
job=${SLURM_JOB_ID-} trouble=''

log() {
	line=$(printf 'job %.20s: %.400s' "$job" "$1" | tr -c ' -~' '?')
	printf 'nccl-inspector-epilog: %s\n' "$line" >&2
	timeout 1 logger -t nccl-inspector-epilog -p daemon.warning -- "$line" 2>/dev/null
}

# A name of ended/ that is not in use, even when the clock stands or was stepped back.
hand_over() {
	# shellcheck disable=SC3028 # bash 5 has it; others ask date
	now=${EPOCHREALTIME:-$(date +%s.%6N)}
	now=${now%.*}${now#*.}000
	case $now in 0* | *[!0-9]* | ????????????????????*) now=1 ;; esac
	while [ -e "$run_dir/ended/$job.$now" ]; do now=$((now + 1)); done
	mv -T -- "$dir" "$run_dir/ended/$job.$now" 2>&1
}

case $job in '' | *[!0-9]* | 0?* | ???????????*)
	log "SLURM_JOB_ID is not a number"
	exit 0
	;;
esac
dir=$run_dir/jobs/$job prom=$run_dir/prom/$job.prom
if [ -L "$dir" ] || { [ -e "$dir" ] && [ ! -d "$dir" ]; }; then
	trouble="$dir stays: it is not a directory. "
elif [ -d "$dir" ]; then
	# The agent may have swept it meanwhile. What fails is done once more, to hear why: a subshell
	# each time would cost every job.
	hand_over >/dev/null || [ ! -e "$dir" ] || reason=$(hand_over) ||
		trouble="the job's files stay: $reason. "
fi
# After the rename: the agent looks for the directory again once it has published a file.
if [ -e "$prom" ]; then
	rm -f -- "$prom" 2>/dev/null || reason=$(rm -f -- "$prom" 2>&1) ||
		trouble="${trouble}the job's series stay: $reason"
fi
[ -z "$trouble" ] || log "$trouble"
