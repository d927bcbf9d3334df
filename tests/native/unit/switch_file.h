/* SPDX-License-Identifier: Apache-2.0 */
/* switch_file.h - for the tests of the kill switch: its directory, and the file that disables. */
#ifndef NCCL_INSPECTOR_SWITCH_FILE_H
#define NCCL_INSPECTOR_SWITCH_FILE_H

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static char dir[64];

static void switch_on(void)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/disabled", dir);
	close(open(path, O_WRONLY | O_CREAT, 0644));
}

static void switch_off(void)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/disabled", dir);
	unlink(path);
}

#endif
