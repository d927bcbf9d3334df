/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c - which GPU it is: the ordinal that CUDA gives it in this process, and the UUID. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "inspector.h"

typedef int (*get_device)(int *device);
typedef int (*get_uuid)(unsigned char uuid[16], int device);

bool nvidia_gpu(int *device, char uuid[48])
{
	void *driver = dlopen("libcuda.so", RTLD_LAZY);
	unsigned char u[16];

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_LAZY);
	if (!driver)
		return false;
	get_device current = (get_device)dlsym(driver, "cuCtxGetDevice");
	get_uuid uuid_of = (get_uuid)dlsym(driver, "cuDeviceGetUuid");
	bool known = current && uuid_of && current(device) == 0 && uuid_of(u, *device) == 0;

	if (known)
		snprintf(uuid, 48,
		         "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		         u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
		         u[12], u[13], u[14], u[15]);
	dlclose(driver);
	return known;
}
