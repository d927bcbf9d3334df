/* SPDX-License-Identifier: Apache-2.0 */
#include "header.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "gpu.h"

/* Version of the libnccl that called us; 0 when it does not tell. */
static uint32_t nccl_version(void *address)
{
	int (*get_version)(int *) = NULL;
	void *library = NULL;
	Dl_info info;
	int version = 0;

	if (dladdr(address, &info) && info.dli_fname)
		library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		library = dlopen(NULL, RTLD_LAZY);
	if (library)
		get_version = (int (*)(int *))dlsym(library, "ncclGetVersion");
	if (get_version && get_version(&version) != 0)
		version = 0;
	if (library)
		dlclose(library);
	return version > 0 ? (uint32_t)version : 0;
}

void header_fill(struct box_header *header, const struct config *config, unsigned api, void *caller)
{
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
	header->nccl_version = nccl_version(caller);
	config_copy_text(header->plugin_version, sizeof(header->plugin_version), NCCL_INSPECTOR_VERSION);
	config_copy_text(header->node, sizeof(header->node), config->node);
	header->clock.ns_per_tick_q32 = clock_calibrate();
	header->clock.tick0 = clock_ticks();
	header->clock.real0_ns = clock_ns(CLOCK_REALTIME);
	atomic_store(&header->beat_tick, header->clock.tick0);
	atomic_store(&header->beat_real_ns, header->clock.real0_ns);
}

uint32_t header_find_gpu(struct box_header *header)
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
