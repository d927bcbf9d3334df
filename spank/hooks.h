/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - run one of the node's hook scripts, so that it can delay its job only by some seconds.
 *
 * slurmd drains a node if its job_prolog or job_epilog callback crashes, or hangs for longer than
 * PrologEpilogTimeout. So a child does all work; whatever happens to it, the caller goes on.
 */
#ifndef NCCL_INSPECTOR_HOOKS_H
#define NCCL_INSPECTOR_HOOKS_H

#include <stddef.h>

/* All variables that the scripts read; they get no others. Ends with NULL. */
extern const char *const hooks_variables[];

/* Calls `work` in a child process. The child leads a new process group; all of its signals have
 * their default action and none is blocked. When the child has ended, or after `deadline_ms`
 * milliseconds, all processes left in its group are killed. The caller must have only one thread.
 *
 * Returns the child's wait status, -ETIME if the deadline passed, or another -errno if no child
 * could be started. Never blocks for more than a second beyond the deadline. */
int hooks_run(void (*work)(void *arg), void *arg, unsigned int deadline_ms);

/* Replaces this process by the script `path`. Of the environment the script gets only
 * `hooks_variables`; its input is empty, its output is discarded, its directory is /. Returns only
 * if the script cannot be executed: -errno, and nothing has been changed. */
int hooks_become(char *path);

#endif
