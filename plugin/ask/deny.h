/* SPDX-License-Identifier: Apache-2.0 */
/* ask/deny.h - the site's list of NCCL versions that are not to be measured. */
#ifndef NCCL_INSPECTOR_ASK_DENY_H
#define NCCL_INSPECTOR_ASK_DENY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether the list, such as "2.28.0-2.28.5,2.31.2", has the version: 23102 is 2.31.2; 0
 * (not known) is on no list. An item that is neither a version nor a range lists nothing; the first
 * of those is copied to `bad` (`room` bytes), "" if there is none. */
bool deny_lists(const char *list, uint32_t version, char *bad, size_t room);

#endif
