/* SPDX-License-Identifier: Apache-2.0 */
/* fakenvml.c - a libnvidia-ml.so.1 for machines without a GPU: as much of NVML as the counters of
 * GPUs ask for. What it says is in a text beside it, libnvidia-ml.state, read at each nvmlInit:
 *
 *	gpus 2				how many there are
 *	0 uuid GPU-1a2b			texts: uuid, pci, name
 *	0 minor 0			numbers: minor, clock, temperature, reasons, width, ...
 *	0 link.3 1			state of an NVLink
 *	0 field.94.0 7			a field's value: its number and scope
 *	hang field			never come back from a call with this word
 *	fail init 9			a call with this word returns so
 *
 * A word that is not there is NVML_ERROR_NOT_SUPPORTED, as on real GPUs. */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_BYTES (1 << 18)
#define MAX_GPUS 16

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
};

struct pci_info {
	char legacy[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

struct field_value {
	uint32_t field_id, scope_id;
	int64_t timestamp, latency_us;
	unsigned int type;
	int result;
	uint64_t value;
};
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");

struct gpu {
	int index;
};

static char state[STATE_BYTES];
static struct gpu gpus[MAX_GPUS];

/* The text after the line's first words, NULL when there is no such line. Lines end in \n. */
static const char *look(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *look(const char *format, ...)
{
	char key[96] = "\n";
	const char *found;
	va_list args;

	va_start(args, format);
	vsnprintf(key + 1, sizeof(key) - 2, format, args);
	va_end(args);
	strcat(key, " ");
	found = strstr(state, key);
	return found ? found + strlen(key) : NULL;
}

/* What a call with this word is to return; it may never. */
static int check(const char *word)
{
	const char *result = look("fail %s", word);

	if (look("hang %s", word))
		for (;;)
			pause();
	return result ? atoi(result) : NVML_SUCCESS;
}

static int number(const struct gpu *gpu, const char *word, unsigned int *value)
{
	const char *text = look("%d %s", gpu->index, word);

	if (!text)
		return NVML_ERROR_NOT_SUPPORTED;
	*value = (unsigned int)strtoul(text, NULL, 10);
	return check(word);
}

static int words(const struct gpu *gpu, const char *word, char *buffer, size_t size)
{
	const char *text = look("%d %s", gpu->index, word);
	size_t length;

	if (!text)
		return NVML_ERROR_NOT_SUPPORTED;
	length = strcspn(text, "\n");
	if (length >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(buffer, text, length);
	buffer[length] = '\0';
	return check(word);
}

static void read_state(void)
{
	char path[PATH_MAX + 32];
	Dl_info self;
	FILE *file;
	size_t length = 0;

	state[0] = '\n';
	if (dladdr(gpus, &self) && realpath(self.dli_fname, path)) {
		strcpy(path, dirname(path));
		strcat(path, "/libnvidia-ml.state");
		file = fopen(path, "r");
		if (file) {
			length = fread(state + 1, 1, sizeof(state) - 3, file);
			fclose(file);
		}
	}
	memcpy(state + 1 + length, " ", 2); /* so that a word at the end is seen */
}

int nvmlInitWithFlags(unsigned int flags);
int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	read_state();
	for (int i = 0; i < MAX_GPUS; i++)
		gpus[i].index = i;
	return look("gpus") ? check("init") : NVML_ERROR_DRIVER_NOT_LOADED;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
	return NVML_SUCCESS;
}

const char *nvmlErrorString(int result);
const char *nvmlErrorString(int result)
{
	return result == 15 ? "GPU is lost" : "an error";
}

int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = (unsigned int)strtoul(look("gpus"), NULL, 10);
	return check("count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **gpu);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **gpu)
{
	char word[32];

	if (index >= MAX_GPUS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*gpu = &gpus[index];
	snprintf(word, sizeof(word), "handle.%u", index);
	return check(word);
}

/* A function of NVML that gives one number of a GPU. */
#define NUMBER(function, word)                                                                     \
	int function(const struct gpu *gpu, unsigned int *value);                                  \
	int function(const struct gpu *gpu, unsigned int *value)                                   \
	{                                                                                          \
		return number(gpu, word, value);                                                   \
	}
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "max_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "max_width")

/* And one that also says which. */
#define NUMBER_OF(function, word)                                                                  \
	int function(const struct gpu *gpu, unsigned int which, unsigned int *value);              \
	int function(const struct gpu *gpu, unsigned int which, unsigned int *value)               \
	{                                                                                          \
		(void)which;                                                                       \
		return number(gpu, word, value);                                                   \
	}
NUMBER_OF(nvmlDeviceGetClockInfo, "clock")
NUMBER_OF(nvmlDeviceGetMaxClockInfo, "max_clock")
NUMBER_OF(nvmlDeviceGetTemperature, "temperature")

int nvmlDeviceGetUUID(const struct gpu *gpu, char *uuid, unsigned int size);
int nvmlDeviceGetUUID(const struct gpu *gpu, char *uuid, unsigned int size)
{
	return words(gpu, "uuid", uuid, size);
}

int nvmlDeviceGetName(const struct gpu *gpu, char *name, unsigned int size);
int nvmlDeviceGetName(const struct gpu *gpu, char *name, unsigned int size)
{
	return words(gpu, "name", name, size);
}

int nvmlDeviceGetPciInfo_v3(const struct gpu *gpu, struct pci_info *pci);
int nvmlDeviceGetPciInfo_v3(const struct gpu *gpu, struct pci_info *pci)
{
	memset(pci, 0, sizeof(*pci));
	return words(gpu, "pci", pci->bus_id, sizeof(pci->bus_id));
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const struct gpu *gpu, unsigned long long *mask);
int nvmlDeviceGetCurrentClocksThrottleReasons(const struct gpu *gpu, unsigned long long *mask)
{
	unsigned int value = 0;
	int result = number(gpu, "reasons", &value);

	*mask = value;
	return result;
}

int nvmlDeviceGetNvLinkState(const struct gpu *gpu, unsigned int link, unsigned int *active);
int nvmlDeviceGetNvLinkState(const struct gpu *gpu, unsigned int link, unsigned int *active)
{
	char word[32];

	snprintf(word, sizeof(word), "link.%u", link);
	return number(gpu, word, active);
}

int nvmlDeviceGetFieldValues(const struct gpu *gpu, int count, struct field_value *values);
int nvmlDeviceGetFieldValues(const struct gpu *gpu, int count, struct field_value *values)
{
	for (int i = 0; i < count; i++) {
		struct field_value *one = &values[i];
		const char *text = look("%d field.%u.%u", gpu->index, one->field_id, one->scope_id);

		one->result = text ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		one->type = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		one->value = text ? strtoull(text, NULL, 10) : 0;
	}
	return check("field");
}
