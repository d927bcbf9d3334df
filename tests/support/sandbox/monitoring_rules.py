"""The bundle's rules in the sandbox's Prometheus, with windows that a test can wait for."""

from collections.abc import Sequence

from nccl_inspector.monitoring.bundle import render
from nccl_inspector.monitoring.site import make_site
from tests.sandbox import Cluster

# The sandbox scrapes each second, and jobs there write each second.
SHORT_WINDOWS = (
    "cluster=sandbox", "scrape_interval=1s", "rate_window=6s", "record_interval=1s",
    "baseline_window=60s", "baseline_offset=8s", "baseline_interval=1s", "baseline_samples=5",
    "late_window=6s", "alert_interval=1s", "degraded_for=4s", "fabric_for=1s", "late_for=3s",
    "very_late_for=3s", "trouble_for=2s", "hung_seconds=4", "hung_for=2s", "start_seconds=4",
    "stale_seconds=20", "agent_seconds=10",
)  # fmt: skip


def load_rules(cluster: Cluster, words: Sequence[str] = SHORT_WINDOWS) -> None:
    """Give Prometheus rules and alerts of a site; `Cluster.reset` takes them away again."""
    site = make_site(words)
    cluster.set_rules({name: render(name, site) for name in ("rules", "alerts")})
