/* SPDX-License-Identifier: Apache-2.0 */
/* json/gzip.h - zlib where the system has it; nothing is linked, so that a container without it loses only this. */
#ifndef NCCL_INSPECTOR_JSON_GZIP_H
#define NCCL_INSPECTOR_JSON_GZIP_H

#include <stddef.h>

struct gzip;

/* NULL where libz.so.1 cannot be had. */
struct gzip *gzip_open(void);

/* Packs the bytes as one whole gzip member, readable whatever happens to what comes after it. Returns its length and
 * where it is until the next call; 0 when it cannot be done. */
size_t gzip_member(struct gzip *gzip, const char *data, size_t length, const char **packed);

#endif
