/* SPDX-License-Identifier: Apache-2.0 */
/* fakecuda.c - a libcuda.so.1 for machines without a GPU: as much of the driver as says which
 * GPU a process has. As in real life a process sees only the devices of CUDA_VISIBLE_DEVICES and
 * calls the first of them 0, whichever it is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 16
#define ALL_DEVICES 8 /* without CUDA_VISIBLE_DEVICES */

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101
};

int cuInit(unsigned int flags);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuCtxGetDevice(int *device);
int cuDevicePrimaryCtxRetain(int **context, int device);
int cuCtxSetCurrent(int *context);
int cuDeviceGetUuid(unsigned char *uuid, int device);
int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
int cuDeviceGetPCIBusId(char *bus_id, int size, int device);

/* Fills the physical minors and returns how many there are. As in CUDA, what follows the first
 * word that is no device is not seen. */
static int visible(int minors[MAX_DEVICES])
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;

	if (!list) {
		for (; n < ALL_DEVICES; n++)
			minors[n] = n;
		return n;
	}
	while (n < MAX_DEVICES && *list >= '0' && *list <= '9') {
		char *end;
		unsigned long minor = strtoul(list, &end, 10);

		if (minor >= MAX_DEVICES)
			break;
		minors[n++] = (int)minor;
		if (*end != ',')
			break;
		list = end + 1;
	}
	return n;
}

static int minor_of(int device)
{
	int minors[MAX_DEVICES];
	int n = visible(minors);

	return device >= 0 && device < n ? minors[device] : -1;
}

int cuInit(unsigned int flags)
{
	int minors[MAX_DEVICES];

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return visible(minors) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int cuDeviceGetCount(int *count)
{
	int minors[MAX_DEVICES];

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = visible(minors);
	return CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (minor_of(ordinal) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

/* A device's one context is the place that holds its ordinal. */
static int contexts[MAX_DEVICES];
static _Thread_local int *current; /* NULL: the first device */

int cuDevicePrimaryCtxRetain(int **context, int device)
{
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (minor_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	contexts[device] = device;
	*context = &contexts[device];
	return CUDA_SUCCESS;
}

int cuCtxSetCurrent(int *context)
{
	current = context;
	return CUDA_SUCCESS;
}

int cuCtxGetDevice(int *device)
{
	return cuDeviceGet(device, current ? *current : 0);
}

/* Two rounds of FNV-1a over the node's name and the minor: the same GPU has the same UUID in
 * every process of the node, and no other GPU has it. */
static void make_uuid(unsigned char uuid[16], int minor)
{
	char text[128] = "";
	uint64_t hash = UINT64_C(14695981039346656037);
	size_t length;

	gethostname(text, sizeof(text) - 8);
	length = strlen(text);
	snprintf(text + length, sizeof(text) - length, "/%d", minor);
	for (int half = 0; half < 2; half++) {
		for (const char *c = text; *c; c++)
			hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
		for (int i = 0; i < 8; i++)
			uuid[8 * half + i] = (unsigned char)(hash >> (8 * i));
	}
}

int cuDeviceGetUuid(unsigned char *uuid, int device)
{
	int minor = minor_of(device);

	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (minor < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	make_uuid(uuid, minor);
	return CUDA_SUCCESS;
}

/* With FAKECUDA_MIG set the process has a part of the GPU, which has a number of its own. */
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	int error = cuDeviceGetUuid(uuid, device);

	if (!error && getenv("FAKECUDA_MIG"))
		uuid[0] ^= 0xff;
	return error;
}

int cuDeviceGetPCIBusId(char *bus_id, int size, int device)
{
	int minor = minor_of(device);

	if (!bus_id || size < 13)
		return CUDA_ERROR_INVALID_VALUE;
	if (minor < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(bus_id, (size_t)size, "0000:%02x:00.0", 0x10u + (unsigned int)minor);
	return CUDA_SUCCESS;
}
