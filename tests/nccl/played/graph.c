/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c - what a graph keeps, and what NCCL asks the runtime while one is captured. */
#include "graph.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "gpu.h"

struct node {
	struct node *next;
	void (*function)(void *);
	void *data; /* of the function, or the kernel's arguments */
	size_t bytes;
};

/* What NCCL wants to have called when the graph is destroyed. */
struct user_object {
	struct user_object *next;
	void (*function)(void *);
	void *data;
};

static struct {
	bool capturing;
	unsigned long long id;
	struct node *first, **end;
	struct user_object *objects;
} graph;

void played_capture_begin(void)
{
	graph.capturing = true;
	graph.id++;
	graph.end = &graph.first;
}

void played_capture_end(void)
{
	graph.capturing = false;
}

void played_graph_launch(void)
{
	for (const struct node *node = graph.first; node; node = node->next)
		if (node->function)
			gpu_call(node->function, node->data);
		else
			gpu_launch(node->data, node->bytes);
}

void played_graph_destroy(void)
{
	gpu_wait(gpu_last());
	while (graph.first) {
		struct node *node = graph.first;

		graph.first = node->next;
		if (!node->function)
			free(node->data);
		free(node);
	}
	while (graph.objects) {
		struct user_object *object = graph.objects;

		graph.objects = object->next;
		object->function(object->data);
		free(object);
	}
}

static struct node *add_node(void)
{
	struct node *node = calloc(1, sizeof(*node));

	*graph.end = node;
	graph.end = &node->next;
	return node;
}

void graph_launch(const void *args, size_t bytes)
{
	struct node *node;

	if (!graph.capturing) {
		gpu_launch(args, bytes);
		return;
	}
	node = add_node();
	node->data = malloc(bytes);
	node->bytes = bytes;
	memcpy(node->data, args, bytes);
}

void graph_call(void (*function)(void *), void *data)
{
	struct node *node;

	if (!graph.capturing) {
		gpu_call(function, data);
		return;
	}
	node = add_node();
	node->function = function;
	node->data = data;
}

/* --- the runtime ----------------------------------------------------------------------- */

CUDA(cudaStreamIsCapturing, void *stream, int *status)
{
	(void)stream;
	*status = graph.capturing;
	return SUCCESS;
}

CUDA(cudaStreamGetCaptureInfo_v2, void *stream, int *status, unsigned long long *id, void **which,
     const void ***nodes, size_t *n)
{
	(void)stream;
	*status = graph.capturing;
	if (id)
		*id = graph.id;
	if (which)
		*which = &graph;
	if (nodes)
		*nodes = NULL;
	if (n)
		*n = 0;
	return SUCCESS;
}

CUDA(cudaStreamGetCaptureInfo_v3, void *stream, int *status, unsigned long long *id, void **which,
     const void ***nodes, const void **edges, size_t *n)
{
	if (edges)
		*edges = NULL;
	return cudaStreamGetCaptureInfo_v2(stream, status, id, which, nodes, n);
}

/* All is worked off in the order of its capture: nothing else depends on anything. */
CUDA(cudaStreamUpdateCaptureDependencies, void *stream, void **nodes, size_t n, unsigned flags)
{
	(void)stream;
	(void)nodes;
	(void)n;
	(void)flags;
	return SUCCESS;
}

CUDA(cudaStreamUpdateCaptureDependencies_v2, void *stream, void **nodes, const void *edges,
     size_t n, unsigned flags)
{
	(void)edges;
	return cudaStreamUpdateCaptureDependencies(stream, nodes, n, flags);
}

CUDA(cudaGraphAddDependencies, void *which, const void **from, const void **to, size_t n)
{
	(void)which;
	(void)from;
	(void)to;
	(void)n;
	return SUCCESS;
}

CUDA(cudaGraphAddDependencies_v2, void *which, const void **from, const void **to,
     const void *edges, size_t n)
{
	(void)edges;
	return cudaGraphAddDependencies(which, from, to, n);
}

CUDA(cudaGraphAddEventRecordNode, void **node, void *which, const void **after, size_t n,
     void *event)
{
	(void)which;
	(void)after;
	(void)n;
	*node = event;
	return SUCCESS;
}

CUDA(cudaUserObjectCreate, void **object, void *data, void (*function)(void *), unsigned count,
     unsigned flags)
{
	struct user_object *made = calloc(1, sizeof(*made));

	(void)count;
	(void)flags;
	made->function = function;
	made->data = data;
	*object = made;
	return SUCCESS;
}

CUDA(cudaGraphRetainUserObject, void *which, struct user_object *object, unsigned count,
     unsigned flags)
{
	(void)which;
	(void)count;
	(void)flags;
	object->next = graph.objects;
	graph.objects = object;
	return SUCCESS;
}
