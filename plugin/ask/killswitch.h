/* SPDX-License-Identifier: Apache-2.0 */
/* ask/killswitch.h - the site's kill switch, as a running process sees it. */
#ifndef NCCL_INSPECTOR_ASK_KILLSWITCH_H
#define NCCL_INSPECTOR_ASK_KILLSWITCH_H

#include <stdbool.h>

#include "base/descriptor.h"

struct killswitch {
	const char *path;
	struct descriptor dir; /* opened again where the application has closed it */
	bool looks;            /* it is on tmpfs, where a look never blocks */
	bool disabled;         /* as seen last */
};

/* Takes the first look at <dir>/disabled; `dir` must outlive the structure. If it is not on tmpfs,
 * where a look may block, the first look is the last one. */
void killswitch_open(struct killswitch *killswitch, const char *dir);

/* Looks again, in two system calls, and returns `disabled`. An error other than "there is no such
 * file" changes nothing. */
bool killswitch_look(struct killswitch *killswitch);

#endif
