/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void refuse(const char *path, const char *why)
{
	fprintf(stderr, "%s: %s\n", path, why);
	exit(2);
}

static const char *map(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	void *found;

	if (fd < 0 || fstat(fd, &status))
		refuse(path, strerror(errno));
	*bytes = (size_t)status.st_size;
	found = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (found == MAP_FAILED)
		refuse(path, strerror(errno));
	close(fd);
	return found;
}

void script_read(struct script *script, const char *path)
{
	const struct script_head *head = &script->head;
	size_t bytes, comms, operations;
	const char *data = map(path, &bytes);

	if (bytes < sizeof(*head))
		refuse(path, "too short");
	memcpy(&script->head, data, sizeof(*head));
	if (memcmp(head->magic, SCRIPT_MAGIC, sizeof(head->magic)) ||
	    head->version != SCRIPT_VERSION)
		refuse(path, "no script of this player");
	comms = head->comms * sizeof(struct script_comm);
	operations = head->operations * sizeof(struct script_op);
	if (bytes != sizeof(*head) + comms + operations + head->environment_bytes)
		refuse(path, "not as long as it says");
	data += sizeof(*head);
	script->comms = (const struct script_comm *)data;
	script->operations = (const struct script_op *)(data + comms);
	script->environment = data + comms + operations;
}
