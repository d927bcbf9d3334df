"""The defects of NVIDIA's Inspector: checks that fail on a profiler with its habits."""
