"""Fuzzers of everything that the Python side reads from somebody else, through every output form.

    python -m tests.fuzzers --seconds 60 --seed 4 box summary
    python -m tests.fuzzers --replay build/fuzz/python/box-0123456789ab box

A target (target.py) has seeds that the product made, mutates them by their structure, and runs
each input in a process of its own (worker.py) that has a budget of CPU time and memory. An
exception that is not documented, a budget exceeded, or an unsafe character in an output fails the
run.
"""
