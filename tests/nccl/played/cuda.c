/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.c - as much of the CUDA runtime as NCCL calls when it has one GPU of compute capability
 * 8.0, no NVLink and no peer access. Memory of the device is memory of the host.
 *
 * patch.c finds these functions by their names. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"
#include "gpu.h"
#include "graph.h"

enum { DRIVER_VERSION = 12080 };

/* --- devices --------------------------------------------------------------------------- */

CUDA(cudaGetDeviceCount, int *count)
{
	*count = 1;
	return SUCCESS;
}

CUDA(cudaGetDevice, int *device)
{
	*device = 0;
	return SUCCESS;
}

CUDA(cudaSetDevice, int device)
{
	return device ? INVALID_VALUE : SUCCESS;
}

CUDA(cudaDriverGetVersion, int *version)
{
	*version = DRIVER_VERSION;
	return SUCCESS;
}

CUDA(cudaRuntimeGetVersion, int *version)
{
	*version = DRIVER_VERSION;
	return SUCCESS;
}

CUDA(cudaDeviceGetAttribute, int *value, int which, int device)
{
	return device ? INVALID_VALUE : cuda_attribute(value, which);
}

CUDA(cudaDeviceGetPCIBusId, char *text, int bytes, int device)
{
	snprintf(text, (size_t)bytes, "0000:%02x:00.0", cuda_bus());
	return device ? INVALID_VALUE : SUCCESS;
}

/* Of cudaDeviceProp NCCL reads only what is right as 0. */
CUDA(cudaGetDeviceProperties_v2, void *properties, int device)
{
	memset(properties, 0, 256);
	return device ? INVALID_VALUE : SUCCESS;
}

CUDA(cudaDeviceSetLimit, int limit, size_t value)
{
	(void)limit;
	(void)value;
	return SUCCESS;
}

CUDA(cudaDeviceCanAccessPeer, int *can, int device, int peer)
{
	(void)device;
	(void)peer;
	*can = 0;
	return SUCCESS;
}

CUDA(cudaGetLastError, void)
{
	return SUCCESS;
}

const char *cudaGetErrorString(int code);
const char *cudaGetErrorString(int code)
{
	return code ? "an error of tests/nccl/cuda.c" : "no error";
}

/* --- memory ---------------------------------------------------------------------------- */

static int allocate(void **pointer, size_t bytes)
{
	/* A multiple of 2 MiB, zeroed, and no page of it is there before it is written. */
	size_t *block = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE,
	                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (block == MAP_FAILED)
		return INVALID_VALUE;
	block[0] = bytes + 4096;
	*pointer = (char *)block + 4096;
	return SUCCESS;
}

static int release(void *pointer)
{
	size_t *block;

	if (!pointer)
		return SUCCESS;
	gpu_forget(pointer);
	block = (size_t *)(void *)((char *)pointer - 4096);
	munmap(block, block[0]);
	return SUCCESS;
}

CUDA(cudaMalloc, void **pointer, size_t bytes)
{
	return allocate(pointer, bytes);
}

CUDA(cudaMallocAsync, void **pointer, size_t bytes, void *stream)
{
	(void)stream;
	return allocate(pointer, bytes);
}

CUDA(cudaMallocFromPoolAsync, void **pointer, size_t bytes, void *pool, void *stream)
{
	(void)pool;
	(void)stream;
	return allocate(pointer, bytes);
}

CUDA(cudaHostAlloc, void **pointer, size_t bytes, unsigned flags)
{
	(void)flags;
	return allocate(pointer, bytes);
}

CUDA(cudaFree, void *pointer)
{
	return release(pointer);
}

CUDA(cudaFreeAsync, void *pointer, void *stream)
{
	(void)stream;
	gpu_wait(gpu_last());
	return release(pointer);
}

CUDA(cudaFreeHost, void *pointer)
{
	return release(pointer);
}

CUDA(cudaHostRegister, void *pointer, size_t bytes, unsigned flags)
{
	(void)pointer;
	(void)bytes;
	(void)flags;
	return SUCCESS;
}

CUDA(cudaHostUnregister, void *pointer)
{
	(void)pointer;
	return SUCCESS;
}

CUDA(cudaHostGetDevicePointer, void **device, void *host, unsigned flags)
{
	(void)flags;
	*device = host;
	return SUCCESS;
}

CUDA(cudaMemcpy, void *to, const void *from, size_t bytes, int kind)
{
	(void)kind;
	memcpy(to, from, bytes);
	return SUCCESS;
}

CUDA(cudaMemcpyAsync, void *to, const void *from, size_t bytes, int kind, void *stream)
{
	(void)kind;
	(void)stream;
	memcpy(to, from, bytes);
	return SUCCESS;
}

CUDA(cudaMemset, void *at, int value, size_t bytes)
{
	memset(at, value, bytes);
	return SUCCESS;
}

CUDA(cudaMemsetAsync, void *at, int value, size_t bytes, void *stream)
{
	(void)stream;
	memset(at, value, bytes);
	return SUCCESS;
}

CUDA(cudaMemPoolCreate, void **pool, const void *properties)
{
	(void)properties;
	*pool = (void *)1;
	return SUCCESS;
}

CUDA(cudaMemPoolDestroy, void *pool)
{
	(void)pool;
	return SUCCESS;
}

CUDA(cudaMemPoolSetAttribute, void *pool, int which, void *value)
{
	(void)pool;
	(void)which;
	(void)value;
	return SUCCESS;
}

/* --- streams and events: one queue for all -------------------------------------------- */

CUDA(cudaStreamCreateWithFlags, void **stream, unsigned flags)
{
	static uintptr_t next = 0x5000;

	(void)flags;
	*stream = (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
	return SUCCESS;
}

CUDA(cudaStreamDestroy, void *stream)
{
	(void)stream;
	return SUCCESS;
}

CUDA(cudaStreamSynchronize, void *stream)
{
	(void)stream;
	gpu_wait(gpu_last());
	return SUCCESS;
}

CUDA(cudaDeviceSynchronize, void)
{
	gpu_wait(gpu_last());
	return SUCCESS;
}

CUDA(cudaStreamGetId, void *stream, unsigned long long *id)
{
	*id = (uintptr_t)stream;
	return SUCCESS;
}

CUDA(cudaStreamWaitEvent, void *stream, void *event, unsigned flags)
{
	(void)stream;
	(void)event;
	(void)flags;
	return SUCCESS;
}

CUDA(cudaThreadExchangeStreamCaptureMode, int *mode)
{
	static _Thread_local int current;
	int before = current;

	current = *mode;
	*mode = before;
	return SUCCESS;
}

CUDA(cudaEventCreateWithFlags, void **event, unsigned flags)
{
	(void)flags;
	*event = calloc(1, sizeof(uint64_t));
	return SUCCESS;
}

CUDA(cudaEventCreate, void **event)
{
	return cudaEventCreateWithFlags(event, 0);
}

CUDA(cudaEventDestroy, void *event)
{
	free(event);
	return SUCCESS;
}

CUDA(cudaEventRecord, uint64_t *event, void *stream)
{
	(void)stream;
	*event = gpu_last();
	return SUCCESS;
}

CUDA(cudaEventQuery, const uint64_t *event)
{
	return gpu_is_done(*event) ? SUCCESS : NOT_READY;
}

CUDA(cudaEventSynchronize, const uint64_t *event)
{
	gpu_wait(*event);
	return SUCCESS;
}

CUDA(cudaLaunchHostFunc, void *stream, void (*function)(void *), void *data)
{
	(void)stream;
	graph_call(function, data);
	return SUCCESS;
}

/* --- kernels --------------------------------------------------------------------------- */

CUDA(cudaFuncGetAttributes, void *attributes, const void *function)
{
	(void)function;
	memset(attributes, 0, 56);
	return SUCCESS;
}

CUDA(cudaFuncSetAttribute, const void *function, int which, int value)
{
	(void)function;
	(void)which;
	(void)value;
	return SUCCESS;
}

CUDA(cudaGetFuncBySymbol, void **function, const void *symbol)
{
	*function = (void *)(uintptr_t)symbol;
	return SUCCESS;
}

/* --- the driver's functions --------------------------------------------------------------- */

CUDA(cudaGetDriverEntryPoint, const char *name, void **function, unsigned long long flags,
     int *status)
{
	(void)flags;
	*function = driver_function(name);
	if (status)
		*status = *function ? 0 : 1;
	return SUCCESS;
}

CUDA(cudaGetDriverEntryPointByVersion, const char *name, void **function, unsigned version,
     unsigned long long flags, int *status)
{
	(void)version;
	return cudaGetDriverEntryPoint(name, function, flags, status);
}
