/* SPDX-License-Identifier: Apache-2.0 */
/* prom/page.h - one text while it is written: families, series and their labels.
 *
 * Each row of a table has several series with the same labels: they are rendered for the first, and the others
 * repeat them from the text.
 */
#ifndef NCCL_INSPECTOR_PROM_PAGE_H
#define NCCL_INSPECTOR_PROM_PAGE_H

#include "prom/window.h"

enum metric {
#define METRIC(id, name, type, help) id,
#include "metrics_table.h"
#undef METRIC
	METRICS,
};

struct expo_labels { /* a part of the text */
	size_t at, length; /* length 0: not rendered yet */
};

struct expo_page {
	struct expo *expo;
	struct text *text;
	unsigned gpu;
	struct expo_labels comms[BOX_COMMS];     /* of the communicator's own series */
	struct expo_labels key_comms[BOX_COMMS]; /* what all keys of one communicator begin with */
	struct expo_labels keys[BOX_KEYS], nets[BOX_NETS];
};

/* True: they were there and are repeated. False: render them, then call expo_rendered. */
bool expo_repeat(struct expo_page *page, struct expo_labels *labels);
void expo_rendered(struct expo_page *page, struct expo_labels *labels);

/* The beginning of a series, up to its labels; before the first one that of the family. */
void expo_begin(struct expo_page *page, enum metric metric, bool *begun);
void expo_end(struct expo_page *page, double value);
void expo_end_time(struct expo_page *page, double unix_s);

/* From '{' on. */
void expo_job_labels(struct expo_page *page);
void expo_comm_labels(struct expo_page *page, unsigned comm);
/* `,rank`, `,comm` and `,comm_name`. */
void expo_comm_words(struct expo_page *page, const struct box_comm *comm);

/* prom/labels.c */
void expo_labels(struct expo_page *page);

/* prom/keys.c: the means of the window, and what was counted. */
void expo_key_gauges(struct expo_page *page);
void expo_key_counters(struct expo_page *page);

#endif
