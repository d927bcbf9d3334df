/* SPDX-License-Identifier: Apache-2.0 */
/* throttle.h - links between nodes that are slower for a while, or cut. */
#ifndef STANDIN_THROTTLE_H
#define STANDIN_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

struct throttle {
	char node[2][64]; /* of a pair both; of one node the first; of all none */
	bool on;
	uint64_t rate_mbs;        /* 0: nothing goes */
	uint64_t from_s, until_s; /* after the ranks have met; until_s 0: to the end */
};

/* "all:4", "n2:4:20:40", "n1+n3:4:20". Cuts the text. Ends the program when it is none. */
void throttle_parse(struct throttle *throttle, char *text);

/* Whether it is of the link between these two nodes; never of a link within one. */
bool throttle_is_of(const struct throttle *throttle, const char *from, const char *to);

#endif
