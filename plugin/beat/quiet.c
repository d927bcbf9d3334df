/* SPDX-License-Identifier: Apache-2.0 */
#include "beat/quiet.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define relaxed memory_order_relaxed
#define QUIET_NS UINT64_C(10000000000)
#define LEAST_NS UINT64_C(1000000000) /* a shorter time gives no new rate */

/* Operations that were called and, in `over`, those of them that are over. */
static uint64_t called(const struct box *box, uint64_t *over)
{
	uint64_t sum = 0;

	*over = 0;
	for (unsigned i = 0; i < BOX_COMMS; i++) {
		const struct box_comm *comm = &box->comms[i];

		*over += atomic_load_explicit(&comm->completed, memory_order_acquire) +
		         atomic_load_explicit(&comm->untimed, memory_order_acquire) +
		         atomic_load_explicit(&comm->lost, memory_order_acquire);
		sum += atomic_load_explicit(&comm->enqueued, relaxed);
	}
	return sum;
}

/* A number of /proc/self/io, which is of all threads. */
static uint64_t number_of(const char *text, const char *name)
{
	const char *found = strstr(text, name);

	return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

/* What the process has read and written. False: the kernel does not say. */
static bool count_bytes(uint64_t *bytes)
{
	char text[512];
	int fd = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	*bytes = number_of(text, "rchar:") + number_of(text, "wchar:");
	return true;
}

void quiet_round(struct quiet *quiet, const struct box *box, uint64_t now_ns)
{
	uint64_t over, sum = called(box, &over);

	if (!quiet->since_ns || sum != quiet->called || over < sum) {
		*quiet = (struct quiet){ .called = sum, .since_ns = now_ns, .rate = QUIET_NONE };
		return;
	}
	if (!quiet->bytes_ns && now_ns - quiet->since_ns >= QUIET_NS && count_bytes(&quiet->bytes))
		quiet->bytes_ns = now_ns;
}

double quiet_rate(struct quiet *quiet, const struct box *box, uint64_t now_ns)
{
	uint64_t bytes, past_ns;

	quiet_round(quiet, box, now_ns);
	past_ns = now_ns - quiet->bytes_ns;
	if (!quiet->bytes_ns || past_ns < LEAST_NS || !count_bytes(&bytes))
		return quiet->rate;
	quiet->rate = (double)(bytes - quiet->bytes) * 1e9 / (double)past_ns;
	quiet->bytes = bytes;
	quiet->bytes_ns = now_ns;
	return quiet->rate;
}
