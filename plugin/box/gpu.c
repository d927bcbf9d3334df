/* SPDX-License-Identifier: Apache-2.0 */
#include "box/gpu.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA driver API: results are ints (0 is success), a device is an int. */
typedef int (*get_device)(int *device);
typedef int (*get_uuid)(unsigned char uuid[16], int device);
typedef int (*get_bus_id)(char *id, int room, int device);
typedef int (*get_count)(int *count);

static int current_device(void *driver, int *device)
{
	get_device current = (get_device)dlsym(driver, "cuCtxGetDevice");
	get_count count_devices = (get_count)dlsym(driver, "cuDeviceGetCount");
	int count = 0;

	if (current && current(device) == 0)
		return 0;
	/* No context in this thread: with one visible device there is no doubt. */
	*device = 0;
	return count_devices && count_devices(&count) == 0 && count == 1 ? 0 : -1;
}

/* Of a part of a GPU (MIG) the older function gives the GPU's, and the newer one the part's own,
 * which tools know by another prefix. */
static void read_uuid(void *driver, int device, struct box_gpu *gpu)
{
	get_uuid whole_of = (get_uuid)dlsym(driver, "cuDeviceGetUuid");
	get_uuid uuid_of = (get_uuid)dlsym(driver, "cuDeviceGetUuid_v2");
	unsigned char u[16], whole[16];

	if (!uuid_of)
		uuid_of = whole_of;
	if (!uuid_of || uuid_of(u, device) != 0)
		return;
	bool is_part = whole_of && whole_of(whole, device) == 0 && memcmp(whole, u, sizeof(u));

	snprintf(gpu->uuid, sizeof(gpu->uuid),
	         "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	         is_part ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8],
	         u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* As the kernel driver tells; /dev/nvidiaN has the same number. */
static int read_minor(const char *pci_bus_id)
{
	char path[96], line[256];
	int minor = -1;

	snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", pci_bus_id);
	FILE *file = fopen(path, "re");

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		if (strncmp(line, "Device Minor:", 13) != 0)
			continue;
		char *end;
		long value = strtol(line + 13, &end, 10);

		if (end != line + 13 && value >= 0 && value < 4096)
			minor = (int)value;
	}
	fclose(file);
	return minor;
}

static void read_bus_id(void *driver, int device, struct box_gpu *gpu)
{
	get_bus_id bus_id_of = (get_bus_id)dlsym(driver, "cuDeviceGetPCIBusId");

	if (!bus_id_of || bus_id_of(gpu->pci_bus_id, sizeof(gpu->pci_bus_id) - 1, device) != 0) {
		gpu->pci_bus_id[0] = '\0';
		return;
	}
	for (char *c = gpu->pci_bus_id; *c; c++) {
		*c = (char)tolower((unsigned char)*c);
		if (!isxdigit((unsigned char)*c) && *c != ':' && *c != '.')
			*c = '?';
	}
	gpu->minor = read_minor(gpu->pci_bus_id);
}

static void set_label(struct box_gpu *gpu)
{
	if (gpu->minor >= 0)
		snprintf(gpu->label, sizeof(gpu->label), "GPU%d", gpu->minor);
	else if (gpu->uuid[0])
		snprintf(gpu->label, sizeof(gpu->label), "%.12s", gpu->uuid);
	else
		snprintf(gpu->label, sizeof(gpu->label), "unknown");
}

void gpu_identify(struct box_gpu *gpu)
{
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	int device;

	memset(gpu, 0, sizeof(*gpu));
	gpu->minor = -1;
	if (driver && current_device(driver, &device) == 0) {
		read_uuid(driver, device, gpu);
		read_bus_id(driver, device, gpu);
	}
	if (driver)
		dlclose(driver);
	set_label(gpu);
}
