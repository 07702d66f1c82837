"""Elastic training: a loss of ranks does not end this process.

    @elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(elastic.ObjectState(epoch=0))

When a collective fails the state goes back to the last commit, this process waits at its sidecar for the next round, and the
function is called again there. Whether it may is the job's choice (`elasticPolicy` in the manifest); without it the sidecars end
every process after a loss and start it again, and the same program goes on from its checkpoint.

The classes have the semantics of Horovod's common/elastic.py; those for torch and TensorFlow build on them.
"""

import functools
import queue
import time
from typing import Any, Callable, Dict, List, Optional

from . import _basics, _core, _ops
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt


class HostUpdateResult:
    """What has happened to the members: bits."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """State that the ranks share. Subclasses say how it is saved, restored and synchronized.

    Args:
        bcast_object: gives every rank the object of rank 0.
        get_rank: this process's rank.
    """

    def __init__(self, bcast_object: Callable[..., Any] = _ops.broadcast_object, get_rank: Callable[[], int] = _basics.rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Functions that are called in each new round, before the state is synchronized: the place to scale a learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """A new round has begun."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Members are about to be added or removed; `check_host_updates` raises when all ranks get there."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state to memory and looks for changes of the members."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt, on all ranks at once, when members have been added or are to be removed."""
        notification_manager.poll()
        last_updated_timestamp = prev_timestamp = self._last_updated_timestamp
        all_update = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > last_updated_timestamp:
                last_updated_timestamp = timestamp
                all_update |= update
        prev_timestamp, self._last_updated_timestamp, all_update = self._bcast_object(
            (prev_timestamp, last_updated_timestamp, all_update)
        )
        if self._last_updated_timestamp > prev_timestamp:
            raise HostsUpdatedInterrupt(all_update == HostUpdateResult.removed)

    def save(self) -> None:
        """Saves the state to memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Takes back what has changed since the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepares objects for a new round, before `sync`."""


class ObjectState(State):
    """State of plain Python objects, given by keyword and found as attributes."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = _ops.broadcast_object,
        get_rank: Callable[[], int] = _basics.rank,
        **kwargs: Any,
    ):
        self._saved_state: Dict[str, Any] = kwargs
        self._set_attrs()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        self._saved_state = {attr: getattr(self, attr) for attr in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            root = sync_root()
            self._saved_state = self._bcast_object(self._saved_state, **({"root_rank": root} if root else {}))
            self._set_attrs()

    def _set_attrs(self) -> None:
        for attr, value in self._saved_state.items():
            setattr(self, attr, value)


_sync_root = 0


def sync_root() -> int:
    """The rank whose state counts when the state is synchronized: the lowest of those that have gone through the most rounds.

    Ranks keep their numbers here, so rank 0 may be a process that has just begun, while others hold the state of the last commit.
    What a State broadcasts in `sync` has to come from this rank. 0 outside of `run`.
    """
    return _sync_root


def _choose_root(rounds: int) -> None:
    global _sync_root
    gone_through = _ops.allgather_object(rounds, "elastic.rounds")
    _sync_root = gone_through.index(max(gone_through))


class NotificationManager:
    """Who hears of changes of the members. The sidecar tells the library, which keeps it until a State looks (`poll`)."""

    def __init__(self) -> None:
        self._listeners: List[State] = []

    def init(self) -> None:
        """From now on the job may ask this program to come to another round; without it, it is started again instead."""
        _core.check(_core.library().rm_hosts_listen())

    def poll(self) -> None:
        """Passes on what the sidecar has told since the last time."""
        bits = _core.library().rm_hosts_updated()
        if bits > 0:
            self.notify(time.time(), bits)

    def register_listener(self, listener: State) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def notify(self, timestamp: float, update_res: int) -> None:
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = NotificationManager()


def reset() -> None:
    """Leaves the round, lost or to be left, and waits for the next one.

    Raises:
        RingmasterError: none came within RINGMASTER_ELASTIC_TIMEOUT seconds (600), or this job is not elastic.
    """
    process_sets = _basics.initial_process_sets()
    _core.library().rm_next_round()
    _basics.shutdown()
    _basics.init(process_sets=process_sets)


def run_fn(func: Callable[..., Any], reset_fn: Callable[[], None] = reset, reset_limit: Optional[int] = None) -> Callable[..., Any]:
    """`run` with everything to choose.

    Args:
        func: called with the state and what else the wrapper is given; called again in each new round.
        reset_fn: leaves the lost round and enters the next.
        reset_limit: most rounds after the first; None: as many as the job allows.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        skip_sync, resets = False, 0
        try:
            while True:
                try:
                    _choose_root(resets)
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except _core.InvalidError:
                    raise  # the program's own mistake: it would make it again
                except HorovodInternalError:
                    if resets == reset_limit:
                        raise
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    if resets == reset_limit:
                        raise
                    skip_sync = interrupt.skip_sync
                resets += 1
                reset_fn()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function's first argument is a State; it is called again in each new round, from the last commit."""
    return run_fn(func)
