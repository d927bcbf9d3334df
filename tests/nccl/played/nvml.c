/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.c - a libnvidia-ml.so.1 with one GPU: what NCCL cannot start without. */
enum { NVML_SUCCESS = 0, NVML_NOT_SUPPORTED = 3 };

#define NVML(name, ...)                                                                            \
	int name(__VA_ARGS__);                                                                     \
	int name(__VA_ARGS__)

/* NCCL calls these without looking whether they are there, and goes on when they fail. */
#define NVML_REFUSES(name)                                                                         \
	int name(void);                                                                            \
	int name(void)                                                                             \
	{                                                                                          \
		return NVML_NOT_SUPPORTED;                                                         \
	}                                                                                          \
	_Static_assert(1, #name)

static int the_gpu;

NVML(nvmlInit_v2, void)
{
	return NVML_SUCCESS;
}

NVML(nvmlShutdown, void)
{
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCount_v2, unsigned *count)
{
	*count = 1;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByIndex, unsigned index, void **device)
{
	*device = &the_gpu;
	return index ? NVML_NOT_SUPPORTED : NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByPciBusId, const char *bus_id, void **device)
{
	(void)bus_id;
	*device = &the_gpu;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetIndex, void *device, unsigned *index)
{
	*index = 0;
	return device == &the_gpu ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

NVML(nvmlDeviceGetCudaComputeCapability, void *device, int *major, int *minor)
{
	*major = 8;
	*minor = 0;
	return device == &the_gpu ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

NVML(nvmlDeviceGetP2PStatus, void *device, void *other, int kind, int *status)
{
	(void)kind;
	*status = 0;
	return device == other ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

NVML(nvmlDeviceGetCurrPcieLinkGeneration, void *device, unsigned *generation)
{
	*generation = 4;
	return device == &the_gpu ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

NVML(nvmlDeviceGetCurrPcieLinkWidth, void *device, unsigned *width)
{
	*width = 16;
	return device == &the_gpu ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

NVML_REFUSES(nvmlDeviceGetNvLinkState);
NVML_REFUSES(nvmlDeviceGetNvLinkRemotePciInfo);
NVML_REFUSES(nvmlDeviceGetNvLinkCapability);
NVML_REFUSES(nvmlDeviceGetFieldValues);
NVML_REFUSES(nvmlDeviceGetPciInfo_v3);
NVML_REFUSES(nvmlDeviceGetPciInfoExt);
NVML_REFUSES(nvmlDeviceGetPcieLinkMaxSpeed);
NVML_REFUSES(nvmlDeviceGetGpuFabricInfoV);
NVML_REFUSES(nvmlDeviceGetPlatformInfo);
NVML_REFUSES(nvmlSystemGetConfComputeState);
NVML_REFUSES(nvmlSystemGetConfComputeSettings);

const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code)
{
	return code ? "not supported" : "success";
}
