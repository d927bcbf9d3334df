/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - what the played runtime and the played driver share. */
#ifndef NCCL_CUDA_H
#define NCCL_CUDA_H

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_READY = 600, NOT_SUPPORTED = 801 };

/* A function of CUDA, with the prototype that the compiler wants to see. Pointers to what we
 * never look into are void. */
#define CUDA(name, ...)                                                                            \
	int name(__VA_ARGS__);                                                                     \
	int name(__VA_ARGS__)

/* An attribute of the device by its number, which is the same in runtime and driver. */
int cuda_attribute(int *value, int which);

/* Where on the PCI bus this rank's GPU is. */
unsigned cuda_bus(void);

/* The address of a function of the driver; NULL as for one that an older driver does not have. */
void *driver_function(const char *name);

#endif
