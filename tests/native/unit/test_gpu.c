/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU is called, as the driver (tests/native/fakecuda) tells. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "box/gpu.h"
#include "tap.h"

static bool load_driver(void)
{
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);

	if (length < 0)
		return false;
	path[length] = '\0';
	snprintf(strrchr(path, '/'), 64, "/../fakecuda/libcuda.so.1");
	return dlopen(path, RTLD_NOW);
}

int main(void)
{
	struct box_gpu whole, part;

	unsetenv("FAKECUDA_MIG");
	setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	ok(load_driver(), "the driver is there");
	gpu_identify(&whole);
	ok(!strncmp(whole.uuid, "GPU-", 4) && strlen(whole.uuid) == 40, "a GPU: %s", whole.uuid);
	setenv("FAKECUDA_MIG", "1", 1);
	gpu_identify(&part);
	ok(!strncmp(part.uuid, "MIG-", 4) && strlen(part.uuid) == 40, "a part of one: %s",
	   part.uuid);
	ok(strcmp(part.uuid + 4, whole.uuid + 4) != 0, "which has a number of its own");
	return done_testing();
}
