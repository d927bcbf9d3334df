/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - run one of the node's hook scripts so that it can cost its job only some seconds.
 *
 * slurmd drains a node whose job_prolog or job_epilog callback crashes, or hangs beyond
 * PrologEpilogTimeout. So all work is done in a child: whatever happens to it, the caller goes on.
 */
#ifndef NCCL_INSPECTOR_HOOKS_H
#define NCCL_INSPECTOR_HOOKS_H

#include <stddef.h>

/* Every variable that the scripts read, and that they are given. Ends with NULL. */
extern const char *const hooks_variables[];

/* Calls `work` in a child process: leader of a new process group, every signal as by default, none
 * blocked. Once the child has ended, or after `deadline_ms` milliseconds, everything that is left
 * of its group is killed. The caller must have no other thread.
 *
 * Returns the child's wait status, -ETIME if the deadline passed, or another -errno if no child
 * could be made. Never blocks for more than a second beyond the deadline. */
int hooks_run(void (*work)(void *arg), void *arg, unsigned int deadline_ms);

/* Turns this process into the script `path`, which gets `hooks_variables` of the environment and
 * nothing else of it; its input is empty, its output is thrown away, its directory is the root.
 * Returns -errno only if that is not possible; then nothing has been changed. */
int hooks_become(char *path);

#endif
