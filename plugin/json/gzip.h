/* SPDX-License-Identifier: Apache-2.0 */
/* json/gzip.h - zlib where the system has it; nothing is linked, so that a container without it
 * loses only this. */
#ifndef NCCL_INSPECTOR_JSON_GZIP_H
#define NCCL_INSPECTOR_JSON_GZIP_H

#include <stddef.h>

struct gzip;

/* Loads libz.so.1. Returns NULL if it cannot be loaded, or without memory. What is returned stays
 * for the life of the process. */
struct gzip *gzip_open(void);

/* Packs the bytes as one whole gzip member, which can be read whatever happens to what comes after
 * it. Returns its length, and where it is until the next call; 0: it cannot be done. One thread at
 * a time. */
size_t gzip_member(struct gzip *gzip, const char *data, size_t length, const char **packed);

#endif
