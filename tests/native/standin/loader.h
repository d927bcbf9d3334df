/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h - finds a profiler plugin as NCCL does, and logs as NCCL does. */
#ifndef STANDIN_LOADER_H
#define STANDIN_LOADER_H

#include "profiler_abi.h"

struct plugin {
	void *library;
	int version; /* 0: no plugin */
	union {
		const struct prof_table_v4 *v4;
		const struct prof_table_v5 *v5; /* and v6 */
		const struct prof_table_v7 *v7;
		const void *any;
	};
};

/* Follows NCCL_PROFILER_PLUGIN. Takes the highest version up to `highest` that is there. */
struct plugin plugin_load(int highest);

/* NCCL's logger: a line on stderr for WARN, and with NCCL_DEBUG=INFO for INFO. */
void nccl_log(int level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* As the real one; what it says belongs to the offered profiler version. For dlsym. */
int ncclGetVersion(int *version);
void nccl_set_version(int profiler_version);

/* NCCL has the CUDA driver loaded and initialised. Here it may be missing. */
void cuda_load(void);

#endif
