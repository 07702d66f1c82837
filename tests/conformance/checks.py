"""What the API promises, as checks that every rank of a job runs in the same order. Run by test_conformance.py: as a program in each
rank it prints one line of JSON a check; imported it only tells their names.
"""

import os

import ml_dtypes
import numpy as np
import ringmaster as rm
from harness import ALL, FLOATS, INTEGERS, REDUCIBLE, SETS, Checks, raises
from ringmaster import elastic

CHECKS = Checks()
check = CHECKS.check


def kind(dtype):
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def values(rank, shape, dtype):
    """Small whole numbers that differ among ranks and places: exact in every type, also when they are added up."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 7 + rank * 3) % 5 + 1
    return (numbers % 2 == 0).reshape(shape) if dtype == "bool" else numbers.reshape(shape).astype(kind(dtype))


def everybody(shape, dtype, ranks=None):
    return [values(rank, shape, dtype) for rank in (range(rm.size()) if ranks is None else ranks)]


def same(got, want, dtype=None):
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert dtype is None or got.dtype == kind(dtype), (got.dtype, dtype)
    assert np.array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64)), (got, want)


# ---- the process -------------------------------------------------------------------------------------------------------


@check()
def identity():
    assert rm.is_initialized() and 0 <= rm.rank() < rm.size() == int(os.environ["RINGMASTER_SIZE"])
    assert rm.local_rank() == 0 and rm.local_size() == 1 and rm.cross_rank() == rm.rank() and rm.cross_size() == rm.size()
    assert rm.is_homogeneous() and not rm.mpi_enabled() and not rm.mpi_built() and rm.gloo_built() and rm.nccl_built() == 0
    assert not (rm.cuda_built() or rm.rocm_built() or rm.ddl_built() or rm.ccl_built())
    raises(ValueError, ["MPI"], rm.mpi_threads_supported)
    rm.init()  # again does nothing


@check()
def the_numbers_of_operations_are_horovods():
    assert [int(op) for op in (rm.Average, rm.Sum, rm.Adasum, rm.Min, rm.Max, rm.Product)] == [0, 1, 2, 3, 4, 5]


# ---- all-reduce --------------------------------------------------------------------------------------------------------

SHAPES = [(), (1,), (3,), (4, 5), (2, 3, 4), (1021,), (300, 300)]


@check(dtype=REDUCIBLE)
def allreduce_sum(dtype):
    for shape in SHAPES:
        same(rm.allreduce(values(rm.rank(), shape, dtype), op=rm.Sum), np.sum(everybody(shape, "int64"), 0), dtype)


@check(dtype=REDUCIBLE)
def allreduce_average(dtype):
    shape = (6, 7)
    mean = np.sum(everybody(shape, "int64"), 0) / rm.size()
    mean = np.trunc(mean) if dtype in INTEGERS else mean.astype(kind(dtype))
    same(rm.allreduce(values(rm.rank(), shape, dtype)), mean, dtype)
    same(rm.allreduce(values(rm.rank(), shape, dtype), average=True), mean, dtype)


@check(dtype=ALL[:9])
def allreduce_min_and_max(dtype):
    for op, function in ((rm.Min, np.min), (rm.Max, np.max)):
        same(rm.allreduce(values(rm.rank(), (5, 9), dtype), op=op), function(everybody((5, 9), dtype), 0), dtype)


@check(dtype=REDUCIBLE)
def allreduce_product(dtype):
    mine = values(rm.rank(), (17,), dtype) % 3 + 1 if dtype in INTEGERS else (values(rm.rank(), (17,), dtype) > 2) + 1
    every = [values(r, (17,), "int64") % 3 + 1 if dtype in INTEGERS else (values(r, (17,), "int64") > 2) + 1 for r in range(rm.size())]
    same(rm.allreduce(mine.astype(kind(dtype)), op=rm.Product), np.prod(every, 0), dtype)


@check(dtype=REDUCIBLE)
def allreduce_scaled(dtype):
    mine = values(rm.rank(), (8, 3), dtype)
    before = [np.trunc(v * 1.5) if dtype in INTEGERS else v * 1.5 for v in everybody((8, 3), "float64")]
    after = np.sum(before, 0) * 0.5
    after = np.trunc(after) if dtype in INTEGERS else after
    same(rm.allreduce(mine, op=rm.Sum, prescale_factor=1.5, postscale_factor=0.5), after, dtype)


@check(dtype=FLOATS)
def allreduce_adasum(dtype):
    one = np.zeros(8)
    one[rm.rank()] = 2
    same(rm.allreduce(one.astype(kind(dtype)), op=rm.Adasum), [2.0] * rm.size() + [0.0] * (8 - rm.size()), dtype)  # orthogonal: added
    same(rm.allreduce(np.full((2, 2), 3).astype(kind(dtype)), op=rm.Adasum), np.full((2, 2), 3), dtype)  # parallel: averaged
    same(rm.allreduce(np.zeros(3).astype(kind(dtype)), op=rm.Adasum), np.zeros(3), dtype)


@check()
def allreduce_large_is_equal_on_all_ranks_to_the_bit():
    mine = np.random.default_rng(rm.rank()).standard_normal(3_000_001).astype(np.float32)
    total = rm.allreduce(mine, op=rm.Sum)
    digests = rm.allgather_object(hash(total.tobytes().__hash__()))
    again = rm.allreduce(mine, op=rm.Sum)
    assert np.array_equal(total, again)
    checks = rm.allgather(total[None, ::1000])
    assert all(np.array_equal(row, checks[0]) for row in checks) and len(digests) == rm.size()
    want = np.sum([np.random.default_rng(r).standard_normal(3_000_001).astype(np.float32) for r in range(rm.size())], 0, np.float64)
    assert np.allclose(total, want, atol=1e-4)


@check()
def asynchronous_calls_in_different_orders():
    names = [f"t{i}" for i in range(200)]
    pending = {}
    for name in names if rm.rank() % 2 == 0 else reversed(names):
        pending[name] = rm.allreduce_async(np.full(5, int(name[1:]) + rm.rank()), op=rm.Sum, name=name)
    for name in names:
        total = rm.size() * int(name[1:]) + sum(range(rm.size()))
        same(rm.synchronize(pending[name]), np.full(5, total))
        assert rm.poll(pending[name])


@check()
def fortran_order_and_slices_are_taken_as_they_look():
    mine = np.asfortranarray(values(rm.rank(), (6, 4), "float32"))[::2, 1:]
    same(rm.allreduce(mine, op=rm.Sum), np.sum([v[::2, 1:] for v in everybody((6, 4), "float32")], 0))


@check(shape=[(0,), (0, 3), (3, 0)])
def tensors_without_elements(shape):
    nothing = np.zeros(shape, np.float32)
    assert rm.allreduce(nothing).shape == shape and rm.broadcast(nothing, 0).shape == shape
    assert rm.allgather(nothing).shape == (shape[0] * rm.size(),) + shape[1:]
    assert rm.reducescatter(nothing).shape[1:] == shape[1:]
    out, received = rm.alltoall(nothing, splits=[shape[0]] + [0] * (rm.size() - 1))
    assert out.shape == ((shape[0] * rm.size() if rm.rank() == 0 else 0),) + shape[1:]
    assert received.tolist() == [shape[0] if rm.rank() == 0 else 0] * rm.size()


# ---- groups ------------------------------------------------------------------------------------------------------------


@check()
def grouped_allreduce_of_several_dtypes():
    shapes = [(3,), (2, 2), (0,), (5, 1), ()]
    dtypes = ["float32", "int32", "float32", "float64", "int32"]
    outs = rm.grouped_allreduce([values(rm.rank(), s, d) for s, d in zip(shapes, dtypes)], op=rm.Sum)
    for out, shape, dtype in zip(outs, shapes, dtypes):
        same(out, np.sum(everybody(shape, dtype), 0), dtype)


@check()
def grouped_allgather_of_several_dtypes():
    dtypes = ["float32", "bool", "int16", "uint8", "bfloat16"]
    rows = [rm.rank() + i for i in range(5)]
    outs = rm.grouped_allgather([values(rm.rank(), (n, 3), d) for n, d in zip(rows, dtypes)])
    for i, (out, dtype) in enumerate(zip(outs, dtypes)):
        same(out, np.concatenate([values(r, (r + i, 3), dtype) for r in range(rm.size())]), dtype)


@check()
def grouped_reducescatter_of_several_dtypes():
    shapes, dtypes = [(5, 2), (rm.size(),), (1, 3)], ["float32", "int64", "float32"]
    outs = rm.grouped_reducescatter([values(rm.rank(), s, d) for s, d in zip(shapes, dtypes)], op=rm.Sum)
    for out, shape, dtype in zip(outs, shapes, dtypes):
        same(out, part(np.sum(everybody(shape, dtype), 0)), dtype)


# ---- all-gather, broadcast, reduce-scatter, all-to-all -----------------------------------------------------------------


def part(array, place=None, ranks=None):
    """This rank's rows: d0 // n, one more for the first d0 % n."""
    return np.array_split(array, ranks or rm.size())[rm.rank() if place is None else place]


@check(dtype=ALL)
def allgather_ragged(dtype):
    for tail in ((), (4,), (2, 3)):
        mine = values(rm.rank(), (rm.rank() * 2, *tail), dtype)
        same(rm.allgather(mine), np.concatenate([values(r, (r * 2, *tail), dtype) for r in range(rm.size())]), dtype)


@check(dtype=ALL)
def broadcast_from_every_rank(dtype):
    for root in range(rm.size()):
        for shape in ((), (7,), (3, 5)):
            same(rm.broadcast(values(rm.rank(), shape, dtype), root), values(root, shape, dtype), dtype)


@check(dtype=REDUCIBLE)
def reducescatter_of_any_number_of_rows(dtype):
    for rows in (1, rm.size(), 2 * rm.size() + 1, 11):
        total = np.sum(everybody((rows, 3), "int64"), 0)
        same(rm.reducescatter(values(rm.rank(), (rows, 3), dtype), op=rm.Sum), part(total), dtype)


@check(op=[rm.Average, rm.Min, rm.Max, rm.Product])
def reducescatter_operations(op):
    every = [v % 3 + 1 for v in everybody((9, 2), "float64")]
    function = {rm.Average: np.mean, rm.Min: np.min, rm.Max: np.max, rm.Product: np.prod}[op]
    same(rm.reducescatter(every[rm.rank()], op=op), part(function(every, 0)))
    same(rm.reducescatter(every[rm.rank()], op=op, prescale_factor=2, postscale_factor=0.5), part(function([2 * e for e in every], 0) * 0.5))


@check(dtype=ALL)
def alltoall_with_splits(dtype):
    splits = [(rm.rank() + r) % 3 for r in range(rm.size())]
    mine = values(rm.rank(), (sum(splits), 2), dtype)
    want, counts = [], []
    for r in range(rm.size()):
        theirs = [(r + k) % 3 for k in range(rm.size())]
        begin = sum(theirs[: rm.rank()])
        want.append(values(r, (sum(theirs), 2), dtype)[begin : begin + theirs[rm.rank()]])
        counts.append(theirs[rm.rank()])
    out, received = rm.alltoall(mine, splits=splits)
    same(out, np.concatenate(want), dtype)
    assert received.tolist() == counts and received.dtype == np.int32


@check()
def alltoall_evenly():
    out = rm.alltoall(np.arange(2 * rm.size()) + 100 * rm.rank())
    same(out, np.concatenate([np.arange(2 * rm.rank(), 2 * rm.rank() + 2) + 100 * r for r in range(rm.size())]))


# ---- objects, barrier, join --------------------------------------------------------------------------------------------


@check()
def objects():
    assert rm.broadcast_object({"from": rm.rank(), "x": [1, (2, None)]}, root_rank=rm.size() - 1)["from"] == rm.size() - 1
    assert rm.broadcast_object_fn(root_rank=0)("text" if rm.rank() == 0 else None) == "text"
    assert rm.allgather_object("x" * rm.rank()) == ["x" * r for r in range(rm.size())]
    rm.barrier()
    rm.barrier("named")


@check()
def join_with_every_operation():
    early = rm.size() - 1
    others = [r for r in range(rm.size()) if r != early]
    if rm.rank() != early:
        for i in range(3):
            same(rm.allreduce(np.full(4, 1.0 + rm.rank()), op=rm.Sum, name=f"j.sum{i}"), np.full(4, float(sum(r + 1 for r in others))))
        same(rm.allreduce(np.ones(2), name="j.average"), np.full(2, len(others) / rm.size()))
        same(rm.allreduce(np.full(2, 5 + rm.rank()), op=rm.Min, name="j.min"), np.full(2, 5))
        same(rm.allgather(np.full((2, 1), rm.rank()), name="j.gather"), np.repeat(others, 2)[:, None])
        same(rm.broadcast(np.full(2, rm.rank()), 0, name="j.broadcast"), np.zeros(2))
        raises(rm.RingmasterError, ["has joined"], lambda: rm.broadcast(np.ones(1), early, name="j.root"))
        rows = np.arange(2 * rm.size())
        same(rm.reducescatter(rows, op=rm.Sum, name="j.scatter"), part(rows * len(others)))
        out, received = rm.alltoall(np.full(rm.size(), rm.rank()), splits=[1] * rm.size(), name="j.exchange")
        same(out, others)
        assert received.tolist() == [1] * len(others) + [0]
        rm.barrier("j.barrier")
    last = rm.join()
    assert rm.allgather_object(last) == [last] * rm.size() and (last != early or rm.size() == 1)
    same(rm.allreduce(np.ones(1), op=rm.Sum, name="j.after"), [rm.size()])


# ---- process sets ------------------------------------------------------------------------------------------------------


@check()
def static_process_sets_of_init():
    first, last = SETS
    assert (first.process_set_id, last.process_set_id) == (1, 2) and first.ranks == [0] and last.ranks == list(range(1, rm.size()))
    mine = first if rm.rank() == 0 else last
    assert mine.included() and mine.size() == len(mine.ranks) and mine.rank() == mine.ranks.index(rm.rank())
    same(rm.allreduce(np.ones(3), op=rm.Sum, process_set=mine, name="one name"), np.full(3, mine.size()))
    assert rm.global_process_set.ranks == list(range(rm.size())) and rm.global_process_set.size() == rm.size()


@check()
def every_operation_in_a_process_set():
    ranks = [0, rm.size() - 1] if rm.size() > 2 else [1]
    process_set = rm.add_process_set(ranks) if rm.size() > 2 else SETS[1]
    if process_set.included():
        n, place = len(ranks), ranks.index(rm.rank())
        same(rm.allreduce(values(rm.rank(), (7,), "float32"), process_set=process_set), np.mean(everybody((7,), "float64", ranks), 0))
        same(rm.grouped_allreduce([np.ones(2), np.ones(3)], op=rm.Sum, process_set=process_set)[1], np.full(3, n))
        same(rm.allgather(np.full(rm.rank() + 1, rm.rank()), process_set=process_set), np.repeat(ranks, [r + 1 for r in ranks]))
        same(rm.broadcast(np.array([rm.rank()]), ranks[-1], process_set=process_set), [ranks[-1]])  # a rank of the job
        rows = np.arange(5)
        same(rm.reducescatter(rows, op=rm.Sum, process_set=process_set), part(rows * n, place, n))
        out, received = rm.alltoall(np.full(n, rm.rank()), splits=[1] * n, process_set=process_set)
        same(out, ranks)
        assert received.tolist() == [1] * n
        assert rm.broadcast_object(rm.rank(), ranks[0], process_set=process_set) == ranks[0]
        assert rm.allgather_object(rm.rank(), process_set=process_set) == ranks
        rm.barrier(process_set=process_set)
        outside = [r for r in range(rm.size()) if r not in ranks]
        raises(ValueError, ["is not in process set"], lambda: rm.broadcast(np.ones(1), outside[0], process_set=process_set))
    else:
        raises(ValueError, ["is not included in process set"], lambda: rm.allreduce(np.ones(1), process_set=process_set))
        raises(ValueError, ["is not included"], process_set.rank)
    rm.barrier("sets")  # unnamed ones are counted per set: they still agree here
    same(rm.allreduce(np.ones(1), op=rm.Sum), [rm.size()])
    assert rm.size() == 2 or rm.remove_process_set(process_set)


@check()
def process_sets_come_and_go():
    raises(ValueError, ["duplicate"], lambda: rm.add_process_set(range(rm.size())))
    raises(ValueError, ["duplicate"], lambda: rm.add_process_set([0]))
    raises(ValueError, [str(rm.size())], lambda: rm.add_process_set([0, rm.size()]))
    raises(ValueError, ["twice"], lambda: rm.add_process_set([0, 0]))
    raises(ValueError, ["list of process ranks"], lambda: rm.ProcessSet(["a"]))
    assert not rm.remove_process_set(rm.global_process_set)
    unregistered = rm.ProcessSet([0])
    assert unregistered.size() is None and unregistered.rank() is None and not rm.remove_process_set(unregistered)
    raises(ValueError, ["not registered"], lambda: rm.allreduce(np.ones(1), process_set=unregistered))
    raises(rm.MismatchError, ["sent process set {"], lambda: rm.add_process_set([rm.rank()] if rm.rank() else [0, 1])) if rm.size() > 2 else None
    removed = SETS[0]
    assert rm.remove_process_set(removed) and removed.process_set_id is None
    again = rm.add_process_set([0])
    assert again.process_set_id == 1  # numbers are given again
    SETS[0] = again


# ---- errors ------------------------------------------------------------------------------------------------------------

MISMATCHES = {
    "shape": lambda odd: rm.allreduce(np.zeros((2, 6) if odd else (3, 4)), name="m"),
    "size": lambda odd: rm.allreduce(np.zeros(5 if odd else 4), name="m"),
    "none at all": lambda odd: rm.allreduce(np.zeros(0 if odd else 4), name="m"),
    "large": lambda odd: rm.allreduce(np.zeros(3_000_000 if odd else 3_000_001), name="m"),
    "dtype": lambda odd: rm.allreduce(np.zeros(4, np.float32 if odd else np.float64), name="m"),
    "operation": lambda odd: rm.allreduce(np.zeros(4), op=rm.Max if odd else rm.Min, name="m"),
    "scale": lambda odd: rm.allreduce(np.zeros(4), prescale_factor=2.0 if odd else 1.0, name="m"),
    "root": lambda odd: rm.broadcast(np.zeros(4), 1 if odd else 0, name="m"),
    "rows of a gather": lambda odd: rm.allgather(np.zeros((2, 3 if odd else 4)), name="m"),
    "dtype of a gather": lambda odd: rm.allgather(np.zeros(2, np.int16 if odd else np.uint16), name="m"),
    "rows of an exchange": lambda odd: rm.alltoall(np.zeros((rm.size(), 3 if odd else 4)), name="m"),
    "shape of a scatter": lambda odd: rm.reducescatter(np.zeros((4, 6) if odd else (6, 4)), name="m"),
    "tensors of a group": lambda odd: rm.grouped_allreduce([np.zeros(4)] if odd else [np.zeros(2), np.zeros(2)], name="m"),
}


@check(what=list(MISMATCHES))
def mismatches_are_errors_on_every_rank(what):
    error = raises(rm.MismatchError, ["rank ", "sent "], lambda: MISMATCHES[what](rm.rank() == 1))
    assert isinstance(error, rm.HorovodInternalError) and "rank 1 (" in str(error), error
    same(rm.allreduce(np.ones(1), op=rm.Sum, name="m"), [rm.size()])  # the name is free again


@check()
def calls_that_cannot_be_right():
    raises(ValueError, ["supersedes"], lambda: rm.allreduce(np.ones(1), average=True, op=rm.Sum))
    raises(ValueError, ["op=9"], lambda: rm.allreduce(np.ones(1), op=9))
    raises(ValueError, ["complex128"], lambda: rm.allreduce(np.ones(1, complex)))
    raises(ValueError, ["int16", "not reduced"], lambda: rm.allreduce(np.ones(1, np.int16), op=rm.Sum))
    raises(ValueError, ["bool"], lambda: rm.allreduce(np.ones(1, bool), op=rm.Sum))
    raises(ValueError, ["adasum"], lambda: rm.allreduce(np.ones(1, np.int32), op=rm.Adasum))
    raises(ValueError, ["adasum"], lambda: rm.reducescatter(np.ones(4), op=rm.Adasum))
    raises(ValueError, ["root 99"], lambda: rm.broadcast(np.ones(1), 99))
    raises(ValueError, ["at least one dimension"], lambda: rm.allgather(np.float32(1)))
    raises(ValueError, ["at least one dimension"], lambda: rm.reducescatter(np.float32(1)))
    raises(ValueError, ["splits"], lambda: rm.alltoall(np.ones(3), splits=[3]) if rm.size() != 1 else None)
    raises(ValueError, ["sum up"], lambda: rm.alltoall(np.ones(3), splits=[1] * (rm.size() - 1) + [9]))
    raises(ValueError, ["evenly"], lambda: rm.alltoall(np.ones(2 * rm.size() + 1)))
    raises(ValueError, ["empty", "name"] if False else ["dimension"], lambda: rm.grouped_allgather([np.ones(1), np.float32(1)]))


@check()
def a_name_that_is_in_flight():
    if rm.rank() == 0:
        pending = rm.allreduce_async(np.ones(2), op=rm.Sum, name="twice")
        raises(ValueError, ["in flight"], lambda: rm.allreduce(np.ones(2), op=rm.Sum, name="twice"))
        rm.barrier("twice")
    else:
        rm.barrier("twice")
        pending = rm.allreduce_async(np.ones(2), op=rm.Sum, name="twice")
    same(rm.synchronize(pending), np.full(2, rm.size()))


@check()
def names_of_any_length():
    for name in ("n" * 117, "n" * 118, "n" * 5000, "ü/weights:0"):
        same(rm.allreduce(np.ones(2), op=rm.Sum, name=name), np.full(2, rm.size()))
    one, other = rm.allreduce_async(np.ones(1), op=rm.Sum, name="x" * 400 + "a"), rm.allreduce_async(np.zeros(1), op=rm.Sum, name="x" * 400 + "b")
    assert one.synchronize() == rm.size() and other.synchronize() == 0


# ---- elastic, in a round that is not lost ------------------------------------------------------------------------------


@check()
def elastic_state():
    state = elastic.ObjectState(step=rm.rank(), notes=[])
    state.sync()
    assert state.step == 0
    state.step = 7
    state.commit()
    state.step = 9
    state.restore()
    assert state.step == 7
    seen = []
    state.register_reset_callbacks([lambda: seen.append(state.step)])
    state.on_reset()
    assert seen == [7]
    state.on_hosts_updated(1, elastic.HostUpdateResult.added)
    interrupt = raises(rm.HostsUpdatedInterrupt, [], state.check_host_updates)
    assert interrupt.skip_sync is False
    assert elastic.run(lambda s, x: (s.step, x))(state, 3) == (7, 3)


@check()
def shut_down_and_begin_again():
    before = rm.size()
    rm.shutdown()
    assert not rm.is_initialized() and SETS[1].process_set_id is None
    raises(ValueError, ["not been initialized"], rm.rank)
    rm.init()
    assert rm.size() == before
    same(rm.allreduce(np.ones(1), op=rm.Sum, name="again"), [before])


# ---- as a program ------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    CHECKS.run(rm)
