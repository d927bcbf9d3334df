/* SPDX-License-Identifier: Apache-2.0 */
#include "base/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"

int directory_open(const char *path)
{
	char part[PATH_MAX];
	size_t length = strlen(path);
	int fd;

	if (length >= sizeof(part))
		return -ENAMETOOLONG;
	memcpy(part, path, length + 1);
	for (char *slash = strchr(part + (*part == '/'), '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(part, 0755); /* what is wrong shows at the last one */
		*slash = '/';
	}
	if (mkdir(part, 0755) && errno != EEXIST)
		return -errno;
	fd = descriptor_move(open(part, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	return fd < 0 ? -errno : fd;
}

void directory_absolute(char *path, size_t room)
{
	char here[PATH_MAX];
	size_t length, start;

	if (path[0] == '/' || !getcwd(here, sizeof(here)))
		return;
	start = strlen(here) + 1;
	length = strlen(path) + 1;
	if (start + length > room)
		return;
	memmove(path + start, path, length);
	memcpy(path, here, start - 1);
	path[start - 1] = '/';
}
