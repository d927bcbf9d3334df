/* SPDX-License-Identifier: Apache-2.0 */
/* base/directory.h - the user's own directory, made if need be. */
#ifndef NCCL_INSPECTOR_BASE_DIRECTORY_H
#define NCCL_INSPECTOR_BASE_DIRECTORY_H

#include <stddef.h>

/* Makes a directory and its parents (0755 and the umask) and opens it. All ranks of a node may do
 * so at the same time: a directory that is there already will do. Returns a descriptor above 2, or
 * -errno. May block: only the threads that write call it. */
int directory_open(const char *path);

/* Makes a path absolute, so that it means the same wherever the process goes afterwards. Leaves it
 * as it is if there is no room. */
void directory_absolute(char *path, size_t room);

#endif
