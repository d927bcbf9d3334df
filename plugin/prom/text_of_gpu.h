/* SPDX-License-Identifier: Apache-2.0 */
/* prom/text_of_gpu.h - the tables of the box as Prometheus text, one text for each GPU of the
 * process.
 *
 * Names, types and help come from python/nccl_inspector/exposition/metrics.tsv. Values are rounded
 * to few binary digits, because such numbers take a third of the disk in Prometheus.
 */
#ifndef NCCL_INSPECTOR_PROM_TEXT_OF_GPU_H
#define NCCL_INSPECTOR_PROM_TEXT_OF_GPU_H

#include "base/textbuf.h"
#include "prom/window.h"

/* Writes the text of one GPU, an index of box_header.gpu; series of the whole process are in that
 * of GPU 0. Without memory the text is marked failed. After prom_window, under the inspector's
 * lock. */
void prom_text_of_gpu(struct prom *prom, unsigned gpu, struct textbuf *text);

#endif
