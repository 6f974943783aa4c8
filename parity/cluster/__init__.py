"""Runs the cases of ops on Dask: a shard is a task, and every Dask worker keeps the backends' processes warm.

The host splits the plan, records what comes back and runs the trainings; the judge works where the cases run.
"""

from parity.cluster.connection import Cluster, ClusterError, connected

__all__ = ["Cluster", "ClusterError", "connected"]
