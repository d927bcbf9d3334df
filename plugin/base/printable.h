/* SPDX-License-Identifier: Apache-2.0 */
/* base/printable.h - text of the application, of Slurm or of NCCL, made fit for logs, metrics and
 * the box. */
#ifndef NCCL_INSPECTOR_BASE_PRINTABLE_H
#define NCCL_INSPECTOR_BASE_PRINTABLE_H

#include <stddef.h>

/* Copies printable ASCII and puts '?' for every other byte. What does not fit into `room` bytes,
 * the '\0' included, is cut off. `from` may be NULL: that gives "". */
void printable_copy(char *to, size_t room, const char *from);

#endif
