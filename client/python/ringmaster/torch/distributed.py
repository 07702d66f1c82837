"""A backend of torch.distributed named "ringmaster": DistributedDataParallel and whatever else uses its collectives run over the ring.

    import ringmaster.torch.distributed                     # registers it; since torch 2.15 nothing has to be imported
    torch.distributed.init_process_group("ringmaster")
    model = torch.nn.parallel.DistributedDataParallel(model)

Ranks are those that Ringmaster has given; `frameworks: [PyTorch]` and `ringmaster run -np` set what env:// reads. Tensors on a GPU travel
through pinned host memory. `send` and `recv` are there for up to 16 ranks.
"""

import collections
import ctypes
import functools
import inspect
import itertools
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _basics, _core, _submit
from .._submit import ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER, Buffer, Handle
from . import _memory

MESSAGE_RANKS = 16  # as many ranks can send to each other: every pair of them is a process set
NAMES = 1024  # of requests in a group, used again and again: the ring knows them then

# enum rm_op
_OPS = [
    (dist.ReduceOp.SUM, 1),
    (dist.ReduceOp.AVG, 2),
    (dist.ReduceOp.MIN, 3),
    (dist.ReduceOp.MAX, 4),
    (dist.ReduceOp.PRODUCT, 5),
]


def _native_op(op: Any) -> int:
    for theirs, ours in _OPS:
        if op == theirs:
            return ours
    raise ValueError(f"the ringmaster backend has no reduction {op}; it has SUM, AVG, MIN, MAX and PRODUCT")


# ---- work --------------------------------------------------------------------------------------------------------------


class _Completer:
    """The thread that ends work whose future somebody has asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: List[_Work] = []
        self._thread: Optional[threading.Thread] = None
        self.something = threading.Event()  # has ended, or was added

    def add(self, work: "_Work") -> None:
        with self._lock:
            self._works.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ringmaster-work", daemon=True)
                self._thread.start()
        self.something.set()

    def _run(self) -> None:
        patience: Optional[float] = None
        while True:
            # The library calls back shortly before a request counts as done: so it is asked again, at growing intervals.
            patience = 0.0002 if self.something.wait(patience) or patience is None else min(2 * patience, 0.05)
            self.something.clear()
            with self._lock:
                done = [work for work in self._works if work.is_completed()]
                self._works = [work for work in self._works if work not in done]
                patience = patience if self._works else None
            for work in done:
                work.complete()


_completer = _Completer()
_tell = _core.DONE_FN(lambda ctx, status, text: _completer.something.set())  # on the library's thread


def _is_done(handle: Handle) -> bool:
    number = handle._number
    return number is None or _core.library().rm_poll(number) != 0


class _Work(dist.Work):
    """A collective under way. It ends where it is waited for; on the completer's thread once its future was asked for."""

    def __init__(self, handles: List[Handle], finish: Callable[[List[Handle]], None], outputs: List[torch.Tensor]):
        super().__init__()
        self._handles, self._finish, self._outputs = handles, finish, outputs
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._failure: Optional[BaseException] = None
        self._begin: Optional[torch.futures.Future] = None
        self._future: Optional[torch.futures.Future] = None
        self._source: Optional[int] = None  # of a message

    def complete(self) -> None:
        """Brings the results to where they belong. Called once, when the requests are done or may be waited for."""
        failure: Optional[BaseException] = None
        for handle in self._handles:
            try:
                handle.wait()
            except BaseException as error:
                failure = failure or error
        try:
            if failure is None:
                with torch.no_grad():
                    self._finish(self._handles)
        except BaseException as error:
            failure = error
        for handle in self._handles:
            handle.release()
        self._failure = failure
        self._ended.set()
        if self._begin is not None:
            self._begin.set_result(None)

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the end. Raises RingmasterError: how it ended; RuntimeError: it did not within the timeout."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            inline = self._begin is None and not self._ended.is_set()
            if inline:
                while deadline is not None and not self.is_completed():
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"a collective of the ringmaster backend has not ended within {seconds:g} s")
                    time.sleep(0.001)
                self.complete()
        while not self._ended.wait(0.2):  # in slices, so that Ctrl-C is heard
            if deadline is not None and time.monotonic() > deadline:
                raise RuntimeError(f"a collective of the ringmaster backend has not ended within {seconds:g} s")
        if self._failure is not None:
            raise self._failure
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._ended.is_set() or all(_is_done(handle) for handle in self._handles)

    def is_success(self) -> bool:
        return self._ended.is_set() and self._failure is None

    def exception(self) -> Any:
        return self._failure

    def result(self) -> List[torch.Tensor]:
        return self._outputs

    def source_rank(self) -> int:
        if self._source is not None:
            return self._source
        raise RuntimeError("sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call.")

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                begin: torch.futures.Future = torch.futures.Future()
                # What a callback raises becomes the error of a future that C++ can read.
                self._future = begin.then(lambda _: self._value())
                if self._ended.is_set():
                    begin.set_result(None)
                else:
                    self._begin = begin
                    _completer.add(self)
            return self._future

    def _value(self) -> List[torch.Tensor]:
        if self._failure is not None:
            raise self._failure
        return self._outputs


# ---- groups ------------------------------------------------------------------------------------------------------------

_sets: Dict[Tuple[int, ...], int] = {}  # process sets of groups, by their ranks


def _set_of(ranks: Sequence[int]) -> int:
    """The number of the process set of these ranks. All ranks of the job make it together, those outside too."""
    key = tuple(ranks)
    if key == tuple(range(_basics.size())):
        return 0
    if list(key) != sorted(key):
        raise ValueError(f"the ranks of a group of the ringmaster backend are in ascending order, not {list(key)}")
    if key not in _sets:
        lib = _core.library()
        number = lib.rm_process_set_add((ctypes.c_int * len(key))(*key), len(key))
        _sets[key] = _existing(key) if number == _core.EXISTS else _core.check(number)
    return _sets[key]


def _existing(key: Tuple[int, ...]) -> int:
    from ..process_sets import get_process_set_ids_and_ranks

    return next(number for number, ranks in get_process_set_ids_and_ranks().items() if tuple(ranks) == key)


def _reachable(tensors: Sequence[torch.Tensor]) -> Tuple[List[torch.Tensor], Optional[int]]:
    """Contiguous tensors that an all-reduce or broadcast takes as they are, and `stream` for `submit`: the tensors themselves where they are
    that."""
    stream = _memory.stream_of(tensors)
    if stream is None:
        return [_on_host(tensor) for tensor in tensors], None
    return [tensor.detach().contiguous() for tensor in tensors], stream


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, in host memory: the tensor itself when it is that."""
    return _memory.on_host(tensor.detach().contiguous())


def _deliver(handle: Handle, outputs: Sequence[torch.Tensor], index: int = 0) -> None:
    """Cuts a result into tensors, one after another."""
    address, _ = handle.output(index)
    at = 0
    for output in outputs:
        length = output.numel() * output.element_size()
        if length:
            memory = (ctypes.c_char * length).from_address(address + at)
            output.detach().copy_(torch.frombuffer(memory, dtype=output.dtype).view(output.shape))
        at += length


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if len(tensors) != 1 else tensors[0].detach().reshape(-1)


def _check_rows(what: str, tensor: torch.Tensor, expected: int) -> None:
    if tensor.numel() != expected:
        raise ValueError(f"{what}: a tensor has {tensor.numel()} elements where {expected} are needed")


class ProcessGroupRingmaster(dist.ProcessGroup):
    """A process group over the ring. Made by `init_process_group` and `new_group`."""

    def __init__(self, rank: int, size: int, ranks: Sequence[int], name: str):
        super().__init__(rank, size)
        self._ranks, self._set, self._label = list(ranks), _set_of(ranks), name
        self._count = 0
        self._in_flight: Deque[Handle] = collections.deque(maxlen=NAMES)
        self._message_counts: Dict[Tuple[int, int, int], int] = collections.defaultdict(int)
        self._messages: Dict[Tuple[int, int, int], Deque[Handle]] = {}  # by sender, receiver and tag

    def getBackendName(self) -> str:
        return "ringmaster"

    def name(self) -> str:
        return "ringmaster"

    supports_coalescing = False  # what torch asks a backend for; a batch of messages is sent one by one

    def _get_backend(self, _device: Any) -> "ProcessGroupRingmaster":
        return self

    # ---- requests ----

    def _submit(self, kind: int, hosts: Sequence[torch.Tensor], in_place: bool, **options: Any) -> Handle:
        for host in hosts:
            _memory.check("a collective of the ringmaster backend", host)
        while len(self._in_flight) == NAMES and not _is_done(self._in_flight[0]):
            time.sleep(0.001)  # its name is used again now
        buffers = [Buffer(h.data_ptr(), h.data_ptr() if in_place else 0, tuple(h.shape), _memory.CODES[h.dtype]) for h in hosts]
        name = f"torch.{self._label}.{self._count % NAMES}"
        self._count += 1
        handle = _submit.submit(kind, name, buffers, process_set=self._set, keep=list(hosts), done=_tell, **options)
        self._in_flight.append(handle)
        return handle

    def _reduce_all(self, tensors: Sequence[torch.Tensor], op: Any, into: Optional[Callable[[], bool]] = None) -> _Work:
        """All-reduces, in place; the tensors of one dtype are one request. `into`: whether this rank takes the result."""
        native = _native_op(op)
        hosts, stream = _reachable(tensors)
        if into is not None:
            hosts = [host.clone() if host.data_ptr() == tensor.data_ptr() else host for host, tensor in zip(hosts, tensors)]
        groups: Dict[torch.dtype, List[torch.Tensor]] = {}
        for host in hosts:
            groups.setdefault(host.dtype, []).append(host)
        handles = [self._submit(ALLREDUCE, group, True, op=native, stream=stream) for group in groups.values()]

        def finish(_: List[Handle]) -> None:
            for host, tensor in zip(hosts, tensors):
                if host.data_ptr() != tensor.data_ptr() and (into is None or into()):
                    tensor.detach().copy_(host)

        return _Work(handles, finish, list(tensors))

    def _exchange(self, data: torch.Tensor, splits: Optional[List[int]], outputs: Sequence[torch.Tensor]) -> _Work:
        handle = self._submit(ALLTOALL, [_on_host(data)], False, splits=splits)
        return _Work([handle], lambda handles: _deliver(handles[0], outputs), list(outputs))

    # ---- collectives, as torch.distributed calls them ----

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self._reduce_all(tensors, opts.reduceOp if opts is not None else dist.ReduceOp.SUM)

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: List[torch.Tensor], opts: Any) -> _Work:
        return self._reduce_all(tensors, opts.reduceOp, lambda: opts.rootRank == self.rank())

    def broadcast(self, tensors: List[torch.Tensor], opts: Any) -> _Work:
        hosts, stream = _reachable(tensors)
        handles = [self._submit(BROADCAST, [host], True, root=self._ranks[opts.rootRank], stream=stream) for host in hosts]

        def finish(_: List[Handle]) -> None:
            for host, tensor in zip(hosts, tensors):
                if host.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(host)

        return _Work(handles, finish, list(tensors))

    def allgather(self, output_tensors: List[List[torch.Tensor]], input_tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self._gather_all(input_tensors, output_tensors)

    def allgather_coalesced(self, output_lists: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        # By rank, then by tensor; ours is by tensor.
        return self._gather_all(inputs, [list(outputs) for outputs in zip(*output_lists)])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        for output, mine in zip(outputs, inputs):
            _check_rows("all_gather_into_tensor", output, self.size() * mine.numel())
        return self._gather_all(inputs, [[output] for output in outputs])

    def _gather_all(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Sequence[torch.Tensor]]) -> _Work:
        handle = self._submit(ALLGATHER, [_on_host(tensor).reshape(-1) for tensor in inputs], False)

        def finish(handles: List[Handle]) -> None:
            for index, parts in enumerate(outputs):
                _, elements = handles[0].output(index)
                if elements != sum(part.numel() for part in parts):
                    raise ValueError(f"all_gather: the ranks have sent {elements} elements; the output tensors have room for others")
                _deliver(handles[0], parts, index)

        return _Work([handle], finish, [part for parts in outputs for part in parts])

    def gather(self, output_tensors: List[List[torch.Tensor]], input_tensors: List[torch.Tensor], opts: Any) -> _Work:
        mine = input_tensors[0]
        splits = [mine.numel() if place == opts.rootRank else 0 for place in range(self.size())]
        return self._exchange(mine.detach().reshape(-1), splits, output_tensors[0] if output_tensors else [])

    def scatter(self, output_tensors: List[torch.Tensor], input_tensors: List[List[torch.Tensor]], opts: Any) -> _Work:
        output = output_tensors[0]
        if opts.rootRank != self.rank():
            return self._exchange(output.new_empty(0), [0] * self.size(), [output])
        for part in input_tensors[0]:
            _check_rows("scatter", part, output.numel())
        return self._exchange(_flat(input_tensors[0]), [part.numel() for part in input_tensors[0]], [output])

    def reduce_scatter(self, output_tensors: List[torch.Tensor], input_tensors: List[List[torch.Tensor]], opts: Any) -> _Work:
        output, parts = output_tensors[0], input_tensors[0]
        if all(part.numel() == output.numel() for part in parts):
            return self._scatter_reduced([output], [_flat(parts)], opts)
        whole = _flat(parts)  # parts of different sizes: all of it, of which this rank keeps its own
        begin = sum(part.numel() for part in parts[: self.rank()])
        work = self._reduce_all([whole], opts.reduceOp)
        inner = work._finish

        def finish(handles: List[Handle]) -> None:
            inner(handles)
            output.detach().copy_(whole[begin : begin + output.numel()].view(output.shape))

        work._finish, work._outputs = finish, [output]
        return work

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> _Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any) -> _Work:
        for output, whole in zip(outputs, inputs):
            _check_rows("reduce_scatter_tensor", whole, self.size() * output.numel())
        return self._scatter_reduced(outputs, inputs, opts)

    def _scatter_reduced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> _Work:
        native = _native_op(opts.reduceOp)
        shaped = [_on_host(whole).reshape(self.size(), output.numel()) for output, whole in zip(outputs, inputs)]
        handles = [self._submit(REDUCESCATTER, [whole], False, op=native) for whole in shaped]

        def finish(handles: List[Handle]) -> None:
            for handle, output in zip(handles, outputs):
                _deliver(handle, [output])

        return _Work(handles, finish, list(outputs))

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: List[int], input_splits: List[int], opts: Any = None
    ) -> _Work:
        expected = list(output_splits) or [output.shape[0] // self.size()] * self.size()
        work = self._exchange(input, list(input_splits) or None, [output])
        inner = work._finish

        def finish(handles: List[Handle]) -> None:
            received = handles[0].received_splits(self.size())
            if received != expected:
                raise ValueError(f"all_to_all_single: rows that came from the ranks: {received}; output_split_sizes says {expected}")
            inner(handles)

        work._finish = finish
        return work

    def alltoall(self, output_tensors: List[torch.Tensor], input_tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self._exchange(_flat(input_tensors), [tensor.numel() for tensor in input_tensors], output_tensors)

    def barrier(self, opts: Any = None) -> _Work:
        return _Work([self._submit(BARRIER, [], True)], lambda _: None, [])

    # The names that these had before torch 2.15.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- messages ----

    def _message(self, tensors: List[torch.Tensor], source: int, destination: int, tag: int) -> _Work:
        """A broadcast among two. Both ends count what goes from one to the other with this tag, so messages of a tag keep their order."""
        pair = tuple(sorted((self._ranks[source], self._ranks[destination])))
        if len(tensors) != 1 or source == destination:
            raise ValueError("send and recv take one tensor, and another rank than this one")
        if _basics.size() > 2 and pair not in _sets:
            raise NotImplementedError(
                f"the ringmaster backend has send and recv for up to {MESSAGE_RANKS} ranks; make a group with the gloo backend for them: "
                'torch.distributed.new_group(backend="gloo")'
            )
        hosts, stream = _reachable(tensors)
        _memory.check("a message of the ringmaster backend", hosts[0])
        under_way = self._messages.setdefault((source, destination, tag), collections.deque())
        while under_way and (_is_done(under_way[0]) or len(under_way) >= NAMES):
            if _is_done(under_way[0]):
                under_way.popleft()
            else:
                time.sleep(0.001)  # its name is used again now
        number = self._message_counts[(source, destination, tag)]
        self._message_counts[(source, destination, tag)] = number + 1
        buffer = Buffer(hosts[0].data_ptr(), hosts[0].data_ptr(), tuple(hosts[0].shape), _memory.CODES[hosts[0].dtype])
        name = f"torch.{self._label}.{source}.to.{destination}.{tag}.{number % NAMES}"
        handle = _submit.submit(
            BROADCAST, name, [buffer], root=self._ranks[source], process_set=_set_of(pair), keep=hosts, done=_tell, stream=stream
        )
        under_way.append(handle)

        def finish(_: List[Handle]) -> None:
            if self.rank() == destination and hosts[0].data_ptr() != tensors[0].data_ptr():
                tensors[0].detach().copy_(hosts[0])

        work = _Work([handle], finish, list(tensors))
        work._source = source
        return work

    def send(self, tensors: List[torch.Tensor], dstRank: int, tag: int = 0) -> _Work:
        return self._message(tensors, self.rank(), dstRank, tag)

    def recv(self, tensors: List[torch.Tensor], srcRank: int, tag: int = 0) -> _Work:
        return self._message(tensors, srcRank, self.rank(), tag)

    def recv_anysource(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the ringmaster backend does not receive from any source; say from which rank, recv(tensor, src=...)")

    recvAnysource = recv_anysource


# ---- registration ------------------------------------------------------------------------------------------------------


def _create(options: Any, _backend_options: Any) -> ProcessGroupRingmaster:
    rank, size = int(options.group_rank), int(options.group_size)
    ranks = list(options.global_ranks_in_group or []) or list(range(size))
    _basics.init()
    if (dist.get_rank() if dist.is_initialized() else rank) != _basics.rank() or max(ranks) >= _basics.size():
        raise ValueError(
            f"torch.distributed says that this is rank {rank} of {size}, Ringmaster that it is rank {_basics.rank()} of {_basics.size()}; "
            "leave rank and world_size to env:// in a job with frameworks: [PyTorch] or of `ringmaster run -np`"
        )
    if not dist.is_initialized():
        if size != _basics.size():
            raise ValueError(f"torch.distributed has {size} ranks, Ringmaster {_basics.size()}")
        _sets.clear()
        for pair in itertools.combinations(range(size), 2):  # for send and recv: every rank makes them, now or never
            if 2 < size <= MESSAGE_RANKS:
                _set_of(pair)
    return ProcessGroupRingmaster(rank, size, ranks, str(options.group_id))


def _make_sets_with_groups() -> None:
    """Every rank passes here when a group is made, also those that will not be in it: a process set needs them all."""
    original = c10d._new_process_group_helper
    signature = inspect.signature(original)

    @functools.wraps(original)
    def helper(*arguments: Any, **options: Any) -> Any:
        given = signature.bind(*arguments, **options).arguments
        ranks = given.get("global_ranks_in_group")
        if ranks and "ringmaster" in str(given.get("backend")).lower() and _basics.is_initialized():
            _set_of(list(ranks))
        return original(*arguments, **options)

    c10d._new_process_group_helper = helper


def register() -> None:
    """Makes the backend known to torch.distributed; importing this module does it."""
    if "ringmaster" not in dist.Backend.backend_list:
        dist.Backend.register_backend("ringmaster", _create, extended_api=True, devices=["cpu", "cuda"])
        _make_sets_with_groups()


register()
