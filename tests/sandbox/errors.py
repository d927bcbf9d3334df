"""The one error of the sandbox cluster, written for the person who reads it."""


class ClusterError(Exception):
    """Something that the sandbox cannot do, in one line."""
