/* SPDX-License-Identifier: Apache-2.0 */
#include "ask/killswitch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <sys/vfs.h>
#include <unistd.h>

static void look(struct killswitch *killswitch)
{
	if (faccessat(killswitch->dir.fd, "disabled", F_OK, 0) == 0)
		killswitch->disabled = true;
	else if (errno == ENOENT)
		killswitch->disabled = false;
}

/* Whether there is a directory in memory now. */
static bool open_dir(struct killswitch *killswitch)
{
	struct statfs where;
	const char *path = killswitch->path;

	if (!*path ||
	    !descriptor_take(&killswitch->dir, open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)))
		return false;
	look(killswitch);
	if (fstatfs(killswitch->dir.fd, &where) == 0 &&
	    (where.f_type == TMPFS_MAGIC || where.f_type == RAMFS_MAGIC))
		return true;
	descriptor_close(&killswitch->dir);
	killswitch->looks = false;
	return false;
}

bool killswitch_look(struct killswitch *killswitch)
{
	if (!killswitch->looks)
		return killswitch->disabled;
	if (descriptor_fd(&killswitch->dir, NULL) >= 0)
		look(killswitch);
	else
		open_dir(killswitch);
	return killswitch->disabled;
}

void killswitch_open(struct killswitch *killswitch, const char *dir)
{
	killswitch->path = dir;
	killswitch->disabled = false;
	killswitch->dir.fd = -1;
	killswitch->looks = open_dir(killswitch);
}
