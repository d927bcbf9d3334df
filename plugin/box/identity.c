/* SPDX-License-Identifier: Apache-2.0 */
#include "box/identity.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/printable.h"
#include "box/gpu.h"

struct library {
	uint32_t version; /* 0: it does not tell */
	bool is_rccl;
};

/* AMD's library is loaded under its own name, or is part of something that uses HIP. */
static bool is_rccl(const char *path, void *handle)
{
	const char *slash = path ? strrchr(path, '/') : NULL;
	const char *name = slash ? slash + 1 : path;

	return (name && !strncmp(name, "librccl", strlen("librccl"))) ||
	       (dlsym(handle, "hipGetDevice") && !dlsym(handle, "cudaGetDevice"));
}

/* The library that called us. */
static struct library library_of(void *address)
{
	struct library found = { 0 };
	int (*get_version)(int *);
	const char *path = NULL;
	void *handle = NULL;
	Dl_info info;
	int version = 0;

	if (dladdr(address, &info))
		path = info.dli_fname;
	if (path)
		handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	if (!handle)
		handle = dlopen(NULL, RTLD_LAZY);
	if (!handle)
		return found;
	get_version = (int (*)(int *))dlsym(handle, "ncclGetVersion");
	if (get_version && get_version(&version) == 0 && version > 0)
		found.version = (uint32_t)version;
	found.is_rccl = is_rccl(path, handle);
	dlclose(handle);
	return found;
}

void identity_fill(struct box_header *header, const struct config *config, unsigned api,
                   void *caller)
{
	struct library library = library_of(caller);

	header->pid = (uint32_t)getpid();
	header->uid = (uint32_t)getuid();
	header->job_id = config->job_id;
	header->step_id = config->step_id;
	header->procid = config->procid;
	header->localid = config->localid;
	header->array_job_id = config->array_job_id;
	header->array_task_id = config->array_task_id;
	header->api_version = api;
	header->timing = api <= 2 ? BOX_TIMING_NONE : api == 3 ? BOX_TIMING_CPU : BOX_TIMING_GPU;
	header->nccl_version = library.version;
	if (library.is_rccl)
		atomic_store(&header->silent, BOX_SILENT_RCCL);
	printable_copy(header->plugin_version, sizeof(header->plugin_version),
	               NCCL_INSPECTOR_VERSION);
	printable_copy(header->node, sizeof(header->node), config->node);
	header->clock.ns_per_tick_q32 = clock_calibrate();
	header->clock.tick0 = clock_ticks();
	header->clock.real0_ns = clock_ns(CLOCK_REALTIME);
	atomic_store(&header->beat_tick, header->clock.tick0);
	atomic_store(&header->beat_real_ns, header->clock.real0_ns);
}

uint32_t identity_find_gpu(struct box_header *header)
{
	struct box_gpu gpu;

	gpu_identify(&gpu);
	for (unsigned i = 0; i < BOX_GPUS; i++) {
		if (header->gpu[i].used && !strcmp(header->gpu[i].uuid, gpu.uuid))
			return i;
		if (header->gpu[i].used)
			continue;
		header->gpu[i] = gpu;
		header->gpu[i].used = 1;
		return i;
	}
	return BOX_GPUS;
}
