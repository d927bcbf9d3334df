/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SUBSYS_INIT 1ul
#define MAX_NAME 254

#define INFO(...) nccl_log(PROF_LOG_INFO, SUBSYS_INIT, __func__, __LINE__, __VA_ARGS__)

/* NCCL's releases by their highest profiler version, as ncclGetVersion says them. */
static const struct {
	int profiler, code;
} releases[] = {
	{ 4, 22707 },
	{ 5, 22809 },
	{ 6, 23007 },
	{ 7, 23203 },
};

static int nccl_version;

void nccl_set_version(int profiler_version)
{
	for (size_t i = 0; i < sizeof(releases) / sizeof(*releases); i++)
		if (releases[i].profiler == profiler_version)
			nccl_version = releases[i].code;
}

int ncclGetVersion(int *version)
{
	if (!version)
		return 4; /* ncclInvalidArgument */
	*version = nccl_version;
	return 0;
}

void nccl_log(int level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
{
	const char *debug = getenv("NCCL_DEBUG");
	bool info = debug && (!strcasecmp(debug, "INFO") || !strcasecmp(debug, "TRACE"));
	char host[64] = "", text[1024];
	va_list args;

	if (level > PROF_LOG_INFO || (level == PROF_LOG_INFO && !info))
		return;
	(void)subsys; /* NCCL_DEBUG_SUBSYS is not played: everything is shown */
	gethostname(host, sizeof(host) - 1);
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (level == PROF_LOG_INFO)
		fprintf(stderr, "%s:%d:%d [0] NCCL INFO %s\n", host, getpid(), gettid(), text);
	else
		fprintf(stderr, "%s:%d:%d [0] %s:%d NCCL WARN %s\n", host, getpid(), gettid(),
		        file ? file : "?", line, text);
}

static void *open_named(const char *name)
{
	/* NULL is the main program: NCCL's STATIC_PLUGIN. */
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		INFO("PROFILER/Plugin: Could not find: %s. %s", name ? name : "main program",
		     dlerror());
	return library;
}

static bool is_file_name(const char *name)
{
	size_t length = strlen(name);

	return strchr(name, '/') ||
	       (!strncmp(name, "lib", 3) && length >= 3 && !strcmp(name + length - 3, ".so"));
}

static void *open_plugin(const char *word)
{
	char name[MAX_NAME + 1], library_name[MAX_NAME + 1];
	void *library;

	if (!word || !*word)
		return open_named("libnccl-profiler.so");
	snprintf(name, sizeof(name), "%s", word);
	INFO("NCCL_PROFILER_PLUGIN set by environment to %s", name);
	if (!strcasecmp(name, "STATIC_PLUGIN"))
		return open_named(NULL);
	library = open_named(name);
	if (library || is_file_name(name))
		return library;
	if (snprintf(library_name, sizeof(library_name), "libnccl-profiler-%s.so", name) > MAX_NAME)
		return NULL;
	return open_named(library_name);
}

struct plugin plugin_load(int highest)
{
	const char *word = getenv("NCCL_PROFILER_PLUGIN");
	struct plugin plugin = { 0 };
	char symbol[32];

	/* The word came with 2.28; before, it is a name like any other. */
	if (word && highest >= 5 && !strcasecmp(word, "none")) {
		INFO("PROFILER/Plugin: disabled by NCCL_PROFILER_PLUGIN=none");
		return plugin;
	}
	plugin.library = open_plugin(word);
	if (!plugin.library)
		return plugin;
	for (int version = highest; version >= 4 && !plugin.version; version--) {
		snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
		plugin.any = dlsym(plugin.library, symbol);
		if (plugin.any)
			plugin.version = version;
		else
			INFO("PROFILER/Plugin: Failed to find %s symbol", symbol);
	}
	if (!plugin.version) {
		INFO("PROFILER/Plugin: profiler plugin is unsupported");
		dlclose(plugin.library);
		return (struct plugin){ 0 };
	}
	/* The name is the first word of every version's table. */
	INFO("PROFILER/Plugin: Loaded %s (v%d)", *(const char *const *)plugin.any, plugin.version);
	return plugin;
}

/* As cudaSetDevice(LOCAL_RANK) in a process whose launcher shows all its processes all devices. */
static void choose_device(void *library)
{
	const char *local_rank = getenv("LOCAL_RANK");
	int (*retain)(int **, int), (*set_current)(int *);
	int *context;

	*(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
	*(void **)&set_current = dlsym(library, "cuCtxSetCurrent");
	if (local_rank && retain && set_current && !retain(&context, atoi(local_rank)))
		set_current(context);
}

void cuda_load(void)
{
	const char *path = getenv("NCCL_STANDIN_CUDA");
	void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned int) = NULL;

	if (library)
		*(void **)&init = dlsym(library, "cuInit");
	if (!init || init(0))
		INFO("CUDA driver: not there, and not needed");
	else
		choose_device(library);
}
