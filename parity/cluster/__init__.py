"""Runs the op cases on Dask: a shard is a task, and every Dask worker keeps the backends' processes warm.

The host splits the plan, records the replies and runs the clients' cases; op cases are judged where they run.
"""

from parity.cluster.connection import Cluster, ClusterError, connected

__all__ = ["Cluster", "ClusterError", "connected"]
