/* SPDX-License-Identifier: Apache-2.0 */
/* old.c - a profiler of v1 to v3 that prints what it is told. It takes each value from its offset
 * in the table of the facts, and knows no structure: what is wrong in a header shows here. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { COLL = 2, P2P = 4, KERNEL_CH = 0x40 };

static uintptr_t last_handle = 100;

static uint64_t at(const unsigned char *descr, size_t offset, size_t bytes)
{
	uint64_t value = 0;

	memcpy(&value, descr + offset, bytes); /* little-endian, as all machines of NCCL */
	return value;
}

static const char *text_at(const unsigned char *descr, size_t offset)
{
	return (const char *)(uintptr_t)at(descr, offset, 8);
}

static int init(void **context, int *mask)
{
	*context = (void *)7;
	*mask = COLL | P2P | KERNEL_CH;
	puts("init");
	return 0;
}

static void *begin(void *context, const unsigned char *descr)
{
	void *handle = (void *)++last_handle;

	printf("start %d context %d handle %d parent %d rank %d", (int)at(descr, 0, 1),
	       (int)(uintptr_t)context, (int)(uintptr_t)handle, (int)at(descr, 8, 8),
	       (int)at(descr, 16, 4));
	return handle;
}

static int start_v1(void *context, void **handle, const unsigned char *d)
{
	*handle = begin(context, d);
	if (d[0] == COLL)
		printf(" name %s hash %d seq %d func %d count %d datatype %d channels %d algo %d "
		       "proto %d",
		       text_at(d, 24), (int)at(d, 32, 8), (int)at(d, 40, 8), d[48],
		       (int)at(d, 72, 8), d[84], d[104], d[106], d[107]);
	else if (d[0] == P2P)
		printf(" name %s hash %d func %d datatype %d count %d peer %d", text_at(d, 24),
		       (int)at(d, 32, 8), d[40], d[56], (int)at(d, 64, 8), (int)at(d, 72, 4));
	putchar('\n');
	return 0;
}

static void print_p2p(const unsigned char *d)
{
	printf(" name %s hash %d func %s datatype %s count %d peer %d", text_at(d, 24),
	       (int)at(d, 32, 8), text_at(d, 40), text_at(d, 56), (int)at(d, 64, 8),
	       (int)at(d, 72, 4));
}

static void print_coll(const unsigned char *d, size_t channels, size_t algo)
{
	printf(" name %s hash %d seq %d func %s count %d datatype %s channels %d algo %s proto %s",
	       text_at(d, 24), (int)at(d, 32, 8), (int)at(d, 40, 8), text_at(d, 48),
	       (int)at(d, 72, 8), text_at(d, 88), d[channels], text_at(d, algo),
	       text_at(d, algo + 8));
}

static int start_v2(void *context, void **handle, const unsigned char *d)
{
	*handle = begin(context, d);
	if (d[0] == COLL)
		print_coll(d, 104, 112);
	else if (d[0] == P2P)
		print_p2p(d);
	putchar('\n');
	return 0;
}

static int start_v3(void *context, void **handle, const unsigned char *d)
{
	*handle = begin(context, d);
	if (d[0] == COLL)
		print_coll(d, 96, 104);
	else if (d[0] == P2P)
		print_p2p(d);
	else if (d[0] == KERNEL_CH)
		printf(" channel %d", d[24]);
	putchar('\n');
	return 0;
}

static int stop(void *handle)
{
	printf("stop %d\n", (int)(uintptr_t)handle);
	return 0;
}

static int record(void *handle, int state, void *args)
{
	(void)args;
	printf("record %d state %d\n", (int)(uintptr_t)handle, state);
	return 0;
}

static int finalize(void *context)
{
	printf("finalize %d\n", (int)(uintptr_t)context);
	return 0;
}

struct table {
	const char *name;
	int (*init)(void **context, int *mask);
	int (*start)(void *context, void **handle, const unsigned char *descr);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, void *args);
	int (*finalize)(void *context);
};

extern const struct table ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3;

const struct table ncclProfiler_v1 = { "old", init, start_v1, stop, record, finalize };
const struct table ncclProfiler_v2 = { "old", init, start_v2, stop, record, finalize };
const struct table ncclProfiler_v3 = { "old", init, start_v3, stop, record, finalize };
