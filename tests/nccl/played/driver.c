/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - the functions of the CUDA driver that NCCL asks for by name. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "graph.h"

/* Attributes of a device by their numbers. */
enum { SM_COUNT = 16, CC_MAJOR = 75, SHARED_OPTIN = 97 };

int cuda_attribute(int *value, int which)
{
	switch (which) {
	case SM_COUNT:
		*value = 108;
		break;
	case CC_MAJOR:
		*value = 8;
		break;
	case SHARED_OPTIN:
		*value = 163 << 10;
		break;
	default:
		*value = 0;
	}
	return SUCCESS;
}

/* As tests/native/fakecuda, which the plugin asks: the ordinal is the one visible device's. */
unsigned cuda_bus(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	return 0x10u + (visible ? (unsigned)atoi(visible) : 0u);
}

/* `extra` is a list: 1, the arguments, 2, where their size is, 0. */
static int launch(void *const *extra)
{
	graph_launch(extra[1], *(const size_t *)extra[3]);
	return SUCCESS;
}

static int play_launch_ex(const void *config, void *function, void **arguments, void **extra)
{
	(void)config;
	(void)function;
	(void)arguments;
	return launch(extra);
}

static int play_device_get(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal ? INVALID_VALUE : SUCCESS;
}

static int play_device_attribute(int *value, int which, int device)
{
	(void)device;
	return cuda_attribute(value, which);
}

static int play_uuid(unsigned char *uuid, int device)
{
	memset(uuid, 0, 16);
	uuid[0] = (unsigned char)cuda_bus();
	return device ? INVALID_VALUE : SUCCESS;
}

static int play_error_text(int code, const char **text)
{
	*text = code ? "an error of tests/nccl/played" : "no error";
	return SUCCESS;
}

static int play_context(void **context)
{
	static int the_context;

	*context = &the_context;
	return SUCCESS;
}

static int play_set_context(void *context)
{
	(void)context;
	return SUCCESS;
}

static int play_context_device(int *device)
{
	*device = 0;
	return SUCCESS;
}

static int play_granularity(size_t *bytes, const void *properties, int which)
{
	(void)properties;
	(void)which;
	*bytes = 2 << 20;
	return SUCCESS;
}

static int play_not_supported(void)
{
	return NOT_SUPPORTED;
}

static const struct {
	const char *name;
	void *function;
} driver[] = {
	{ "cuCtxGetCurrent", (void *)(uintptr_t)play_context },
	{ "cuCtxSetCurrent", (void *)(uintptr_t)play_set_context },
	{ "cuCtxGetDevice", (void *)(uintptr_t)play_context_device },
	{ "cuDeviceGet", (void *)(uintptr_t)play_device_get },
	{ "cuDeviceGetAttribute", (void *)(uintptr_t)play_device_attribute },
	{ "cuDeviceGetUuid", (void *)(uintptr_t)play_uuid },
	{ "cuGetErrorString", (void *)(uintptr_t)play_error_text },
	{ "cuGetErrorName", (void *)(uintptr_t)play_error_text },
	{ "cuLaunchKernelEx", (void *)(uintptr_t)play_launch_ex },
	{ "cuMemGetAllocationGranularity", (void *)(uintptr_t)play_granularity },
	{ "cuPointerGetAttribute", (void *)(uintptr_t)play_not_supported },
	{ "cuMemGetAddressRange", (void *)(uintptr_t)play_not_supported },
};

void *driver_function(const char *name)
{
	for (size_t i = 0; i < sizeof(driver) / sizeof(driver[0]); i++)
		if (!strcmp(name, driver[i].name))
			return driver[i].function;
	return NULL;
}
