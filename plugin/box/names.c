/* SPDX-License-Identifier: Apache-2.0 */
#include "box/names.h"

#include "box/box.h"

static const char *const funcs[BOX_FUNCS] = {
	[BOX_FUNC_UNKNOWN] = "Unknown",     [BOX_FUNC_ALLREDUCE] = "AllReduce",
	[BOX_FUNC_ALLGATHER] = "AllGather", [BOX_FUNC_REDUCESCATTER] = "ReduceScatter",
	[BOX_FUNC_BROADCAST] = "Broadcast", [BOX_FUNC_REDUCE] = "Reduce",
	[BOX_FUNC_ALLTOALL] = "AlltoAll",   [BOX_FUNC_GATHER] = "Gather",
	[BOX_FUNC_SCATTER] = "Scatter",     [BOX_FUNC_SEND] = "Send",
	[BOX_FUNC_RECV] = "Recv",           [BOX_FUNC_SENDRECV] = "SendRecv",
};
static const char *const algos[BOX_ALGOS] = {
	[BOX_ALGO_UNKNOWN] = "Unknown",
	[BOX_ALGO_TREE] = "TREE",
	[BOX_ALGO_RING] = "RING",
	[BOX_ALGO_COLLNET_DIRECT] = "COLLNET_DIRECT",
	[BOX_ALGO_COLLNET_CHAIN] = "COLLNET_CHAIN",
	[BOX_ALGO_NVLS] = "NVLS",
	[BOX_ALGO_NVLS_TREE] = "NVLS_TREE",
	[BOX_ALGO_PAT] = "PAT",
	[BOX_ALGO_GROUP] = "GROUP",
	[BOX_ALGO_CE] = "CE",
	[BOX_ALGO_SYM] = "SYM",
};
static const char *const protos[BOX_PROTOS] = {
	[BOX_PROTO_UNKNOWN] = "Unknown",
	[BOX_PROTO_LL] = "LL",
	[BOX_PROTO_LL128] = "LL128",
	[BOX_PROTO_SIMPLE] = "SIMPLE",
};

const char *box_func_name(unsigned func)
{
	return funcs[func < BOX_FUNCS ? func : 0];
}

const char *box_algo_name(unsigned algo)
{
	return algos[algo < BOX_ALGOS ? algo : 0];
}

const char *box_proto_name(unsigned proto)
{
	return protos[proto < BOX_PROTOS ? proto : 0];
}
