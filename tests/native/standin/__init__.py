"""The stand-in for NCCL, and how tests run it."""
