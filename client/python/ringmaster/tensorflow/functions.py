"""Horovod's place of the functions on variables and objects."""

from .collectives import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables
from .session import broadcast_global_variables

__all__ = ["allgather_object", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
