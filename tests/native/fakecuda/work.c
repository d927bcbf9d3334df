/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - the rest of a libcuda.so.1 for a program that uses a GPU itself: its memory is the
 * host's, and what a stream is given is done at once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };

int cuDriverGetVersion(int *version);
int cuGetErrorName(int error, const char **name);
int cuDeviceGetName(char *name, int size, int device);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuMemsetD32Async(uint64_t to, unsigned int value, size_t words, void *stream);
int cuStreamCreate(void **stream, unsigned int flags);
int cuStreamSynchronize(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned int flags);
int cuEventCreate(void **event, unsigned int flags);
int cuEventRecord(void *event, void *stream);

static int object; /* any stream and any event */

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
	(void)error;
	*name = "CUDA_ERROR_OF_A_FAKE";
	return CUDA_SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device)
{
	(void)device;
	snprintf(name, (size_t)size, "NVIDIA Fake 1");
	return CUDA_SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	void *memory = malloc(bytes);

	*address = (uintptr_t)memory;
	return memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return CUDA_SUCCESS;
}

int cuMemsetD32Async(uint64_t to, unsigned int value, size_t words, void *stream)
{
	uint32_t *word = (uint32_t *)(uintptr_t)to;

	(void)stream;
	for (size_t i = 0; i < words; i++)
		word[i] = value;
	return CUDA_SUCCESS;
}

int cuStreamCreate(void **stream, unsigned int flags)
{
	(void)flags;
	*stream = &object;
	return CUDA_SUCCESS;
}

int cuStreamSynchronize(void *stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned int flags)
{
	(void)stream;
	(void)event;
	(void)flags;
	return CUDA_SUCCESS;
}

int cuEventCreate(void **event, unsigned int flags)
{
	(void)flags;
	*event = &object;
	return CUDA_SUCCESS;
}

int cuEventRecord(void *event, void *stream)
{
	(void)event;
	(void)stream;
	return CUDA_SUCCESS;
}
