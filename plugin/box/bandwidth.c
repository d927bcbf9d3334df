/* SPDX-License-Identifier: Apache-2.0 */
#include "box/bandwidth.h"

#include <stdio.h>

#include "box/box.h"

double bandwidth_bus_factor(unsigned func, int nranks)
{
	double n = nranks;

	if (nranks < 2)
		return 0;
	switch (func) {
	case BOX_FUNC_ALLREDUCE:
		return 2 * (n - 1) / n;
	case BOX_FUNC_ALLGATHER: /* total bytes are n shares, of which (n-1)/n cross the bus */
	case BOX_FUNC_REDUCESCATTER:
		return n - 1;
	case BOX_FUNC_BROADCAST:
	case BOX_FUNC_REDUCE:
	case BOX_FUNC_SEND:
	case BOX_FUNC_RECV:
	case BOX_FUNC_SENDRECV:
	/* Groups of Sends and Recvs: their rate is of the bytes to others (hot/groups.h). */
	case BOX_FUNC_ALLTOALL:
	case BOX_FUNC_GATHER:
	case BOX_FUNC_SCATTER:
		return 1;
	default:
		return 0;
	}
}

void bandwidth_size_label(unsigned size_class, char *label, size_t room)
{
	static const char *const units[] = { "B", "KB", "MB", "GB", "TB", "PB", "EB" };
	unsigned unit = size_class / 10;
	unsigned low = size_class ? 1u << (size_class % 10) : 0;
	unsigned high = 2u << (size_class % 10);

	snprintf(label, room, "%u-%u%s", low, high, units[unit]);
}
