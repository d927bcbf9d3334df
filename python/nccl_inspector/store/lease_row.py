# SPDX-License-Identifier: Apache-2.0
"""The row in the database that says which host's controller service works for a cluster.

All times are the database's, so the clocks of the hosts do not matter. If its clock is set back, a
lease that ends later than any can is shortened to a whole one: its holder may live. If it is set
ahead, another service takes the lease at once, and the holder sees that when it next renews.
"""

from sqlalchemy import Connection, text

from nccl_inspector.store.postgresql import writing_database

_TAKE = """
INSERT INTO leases (cluster, holder, until_at)
VALUES (:cluster, :holder, clock_timestamp() + make_interval(secs => :seconds))
ON CONFLICT (cluster) DO UPDATE SET holder = excluded.holder, until_at = excluded.until_at
WHERE leases.holder = excluded.holder OR leases.until_at < clock_timestamp()
RETURNING holder
"""
_SHORTEN = """
UPDATE leases SET until_at = clock_timestamp() + make_interval(secs => :seconds)
WHERE cluster = :cluster AND until_at > clock_timestamp() + make_interval(secs => :seconds)
"""
_HOLDER = "SELECT holder FROM leases WHERE cluster = :cluster"
_GIVE = "DELETE FROM leases WHERE cluster = :cluster AND holder = :holder"


def take_lease(url: str, cluster: str, holder: str, seconds: float) -> str:
    """Take the lease or renew it for so many seconds; return who holds it now.

    Raises:
        InspectorError: the database did not do it.
    """
    values = {"cluster": cluster, "holder": holder, "seconds": seconds}
    with writing_database(url) as index:
        taken = index.scalar(text(_TAKE), values)
        if not taken:
            index.execute(text(_SHORTEN), {"cluster": cluster, "seconds": seconds})
        return str(taken or _other(index, cluster))


def _other(index: Connection, cluster: str) -> str:
    return str(index.scalar(text(_HOLDER), {"cluster": cluster}) or "")


def give_lease(url: str, cluster: str, holder: str) -> None:
    """Give the lease back, if it is ours. Raises InspectorError."""
    with writing_database(url) as index:
        index.execute(text(_GIVE), {"cluster": cluster, "holder": holder})
