/* SPDX-License-Identifier: Apache-2.0 */
#include "json/gzip.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

/* zlib's interface, unchanged since its version 1.0 of 1996. */
struct stream {
	const unsigned char *next_in;
	unsigned avail_in;
	unsigned long total_in;
	unsigned char *next_out;
	unsigned avail_out;
	unsigned long total_out;
	const char *message;
	void *state, *allocate, *release, *opaque;
	int data_type;
	unsigned long checksum, reserved;
};
#ifdef __LP64__
_Static_assert(sizeof(struct stream) == 112, "deflateInit2_ compares this");
#endif

enum {
	FINISH = 4,
	STREAM_END = 1,
	DEFLATED = 8,
	FASTEST = 1,
	GZIP_WINDOW_BITS = 15 + 16,
	MEMORY_LEVEL = 8
};

struct gzip {
	struct stream stream;
	int (*deflate)(struct stream *stream, int flush);
	int (*reset)(struct stream *stream);
	unsigned long (*bound)(struct stream *stream, unsigned long length);
	unsigned char *packed;
	size_t room;
};

struct gzip *gzip_open(void)
{
	void *library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(struct stream *, int, int, int, int, int, const char *, int);
	struct gzip *gzip = library ? calloc(1, sizeof(*gzip)) : NULL;

	if (!gzip)
		return NULL;
	init = (int (*)(struct stream *, int, int, int, int, int, const char *, int))dlsym(
	    library, "deflateInit2_");
	gzip->deflate = (int (*)(struct stream *, int))dlsym(library, "deflate");
	gzip->reset = (int (*)(struct stream *))dlsym(library, "deflateReset");
	gzip->bound =
	    (unsigned long (*)(struct stream *, unsigned long))dlsym(library, "deflateBound");
	/* Only the first digit of the version is looked at. */
	if (init && gzip->deflate && gzip->reset && gzip->bound &&
	    init(&gzip->stream, FASTEST, DEFLATED, GZIP_WINDOW_BITS, MEMORY_LEVEL, 0, "1",
	         sizeof(gzip->stream)) == 0)
		return gzip; /* the library stays: it is used as long as the process lives */
	free(gzip);
	return NULL;
}

size_t gzip_member(struct gzip *gzip, const char *data, size_t length, const char **packed)
{
	struct stream *stream = &gzip->stream;
	size_t room = gzip->bound(stream, length);

	if (room > gzip->room) {
		unsigned char *larger = realloc(gzip->packed, room);

		if (!larger)
			return 0;
		gzip->packed = larger;
		gzip->room = room;
	}
	if (length > UINT_MAX || gzip->room > UINT_MAX || gzip->reset(stream) != 0)
		return 0;
	stream->next_in = (const unsigned char *)data;
	stream->avail_in = (unsigned)length;
	stream->next_out = gzip->packed;
	stream->avail_out = (unsigned)gzip->room;
	if (gzip->deflate(stream, FINISH) != STREAM_END)
		return 0;
	*packed = (const char *)gzip->packed;
	return gzip->room - stream->avail_out;
}
