"""Horovod's place of the operations and of what is asked of the process."""

from .. import init, is_initialized, local_rank, local_size, rank, shutdown, size
from .collectives import allgather, alltoall, broadcast, broadcast_, grouped_allgather, join
from .ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .util import _executing_eagerly  # noqa: F401

__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "process_set_included_op",
    "rank",
    "rank_op",
    "shutdown",
    "size",
    "size_op",
]
