"""Plays NCCL against a profiler, call by call: the header `player.h`."""
