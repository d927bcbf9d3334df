/* SPDX-License-Identifier: Apache-2.0 */
/* oplog.h - the stand-in's own record of each operation, against which the product is checked. */
#ifndef STANDIN_OPLOG_H
#define STANDIN_OPLOG_H

#include "op.h"

struct oplog {
	int fd; /* -1: no log */
	int rank;
};

/* Makes <dir>/<rank>.jsonl; dir NULL: none. Ends the process when it cannot. */
void oplog_open(struct oplog *log, const char *dir, int rank);

/* One line, one write(2): lines of several threads do not mix, and a kill leaves whole ones. */
void oplog_write(const struct oplog *log, const struct op *op);

#endif
