"""Real NCCL on a real GPU: see README.md here."""
