# SPDX-License-Identifier: Apache-2.0
"""Tell whether two jobs have the same user and submit line, without storing these."""

from hashlib import sha256

from nccl_inspector.model.card import Job


def script_fingerprint(job: Job) -> str:
    """Return a fingerprint of user and submit line; empty if these are not known."""
    if not job.submit_line:
        return ""
    words = f"{job.uid}\0{' '.join(job.submit_line.split())}"
    return sha256(words.encode("utf-8", "replace")).hexdigest()[:16]
