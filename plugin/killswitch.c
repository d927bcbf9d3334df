/* SPDX-License-Identifier: Apache-2.0 */
#include "killswitch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "box.h"

bool killswitch_look(struct killswitch *killswitch)
{
	if (killswitch->dir_fd < 0)
		return killswitch->disabled;
	if (faccessat(killswitch->dir_fd, "disabled", F_OK, 0) == 0)
		killswitch->disabled = true;
	else if (errno == ENOENT)
		killswitch->disabled = false;
	return killswitch->disabled;
}

void killswitch_open(struct killswitch *killswitch, const char *dir)
{
	struct statfs where;
	int fd = *dir ? open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;

	killswitch->disabled = false;
	killswitch->dir_fd = box_move_fd(fd);
	if (killswitch->dir_fd < 0)
		return;
	killswitch_look(killswitch);
	if (fstatfs(killswitch->dir_fd, &where) == 0 &&
	    (where.f_type == TMPFS_MAGIC || where.f_type == RAMFS_MAGIC))
		return;
	close(killswitch->dir_fd);
	killswitch->dir_fd = -1;
}
