/* SPDX-License-Identifier: Apache-2.0 */
/* killswitch.h - the site's kill switch, as a running process sees it. */
#ifndef NCCL_INSPECTOR_KILLSWITCH_H
#define NCCL_INSPECTOR_KILLSWITCH_H

#include <stdbool.h>

struct killswitch {
	int dir_fd;    /* on tmpfs, where a look never blocks; -1: there is nothing to look at any more */
	bool disabled; /* as seen last */
};

/* Takes the first look at <dir>/disabled. Where the directory is not on tmpfs that is also the last one. */
void killswitch_open(struct killswitch *killswitch, const char *dir);

/* Looks again, in one system call; an answer that tells nothing changes nothing. Returns `disabled`. */
bool killswitch_look(struct killswitch *killswitch);

#endif
