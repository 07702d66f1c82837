"""What ringmaster.torch promises, as checks that every rank of a job runs in the same order; see checks.py. torch is imported where
the checks run alone: who asks for their names need not have it.
"""

import contextlib
import copy
import sys
import warnings

from harness import ALL, FLOATS, INTEGERS, REDUCIBLE, SETS, Checks, raises

if __name__ == "__main__":
    import numpy as np
    import ringmaster.torch as rm
    import torch
    import torch.nn.functional as F

CHECKS = Checks()
check = CHECKS.check


def values(rank, shape, dtype="float32"):
    """Small whole numbers that differ among ranks and places: exact in every type, also when they are added up."""
    numbers = (torch.arange(int(np.prod(shape))) * 7 + rank * 3) % 5 + 1
    return (numbers % 2 == 0).reshape(shape) if dtype == "bool" else numbers.reshape(shape).to(getattr(torch, dtype))


def everybody(shape, dtype="float64"):
    return torch.stack([values(rank, shape, dtype) for rank in range(rm.size())])


def same(got, want, dtype=None):
    want = torch.as_tensor(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert dtype is None or got.dtype == getattr(torch, dtype), (got.dtype, dtype)
    assert torch.equal(got.detach().to(torch.float64), want.detach().to(torch.float64)), (got, want)


def near(got, want, tolerance=1e-5):
    assert torch.allclose(got.detach().double(), want.detach().double(), rtol=tolerance, atol=tolerance), (got, want)


def part(tensor):
    """This rank's rows: d0 // n, one more for the first d0 % n."""
    return torch.tensor_split(tensor, rm.size())[rm.rank()]


# ---- collectives -------------------------------------------------------------------------------------------------------


@check(dtype=REDUCIBLE)
def allreduce_in_and_out_of_place(dtype):
    for shape in ((), (3,), (4, 5), (0, 3), (2, 3, 4)):
        mine, total = values(rm.rank(), shape, dtype), everybody(shape).sum(0)
        before = mine.clone()
        same(rm.allreduce(mine, op=rm.Sum), total, dtype)
        same(mine, before, dtype)
        assert rm.allreduce_(mine, op=rm.Sum) is mine
        same(mine, total, dtype)
        handle = rm.allreduce_async_(before, average=False)
        assert rm.synchronize(handle) is before and rm.poll(handle) and rm.synchronize(handle) is before
        same(before, total, dtype)


@check(dtype=REDUCIBLE)
def allreduce_average_and_scales(dtype):
    mine, total = values(rm.rank(), (6, 7), dtype), everybody((6, 7)).sum(0)
    mean = (total / rm.size()).trunc() if dtype in INTEGERS else (total / rm.size()).to(getattr(torch, dtype))
    same(rm.allreduce(mine), mean, dtype)
    same(rm.allreduce(mine, average=True), mean, dtype)
    before = everybody((6, 7)) * 1.5
    scaled = (before.trunc() if dtype in INTEGERS else before).sum(0) * 0.5
    same(rm.allreduce(mine, op=rm.Sum, prescale_factor=1.5, postscale_factor=0.5), scaled.trunc() if dtype in INTEGERS else scaled, dtype)


@check(dtype=REDUCIBLE + ("bool",))
def allreduce_min_max_product(dtype):
    mine = values(rm.rank(), (5, 9), dtype)
    every = torch.stack([values(r, (5, 9), dtype).double() for r in range(rm.size())])
    same(rm.allreduce(mine, op=rm.Min), every.amin(0), dtype)
    same(rm.allreduce(mine, op=rm.Max), every.amax(0), dtype)
    if dtype != "bool":
        small = (every[rm.rank()] > 2).double() + 1
        same(rm.allreduce(small.to(mine.dtype), op=rm.Product), ((every > 2).double() + 1).prod(0), dtype)


@check(dtype=FLOATS)
def allreduce_adasum(dtype):
    one = torch.zeros(8, dtype=getattr(torch, dtype))
    one[rm.rank()] = 2
    same(rm.allreduce(one, op=rm.Adasum), [2.0] * rm.size() + [0.0] * (8 - rm.size()), dtype)  # orthogonal: added
    for out in rm.grouped_allreduce([torch.full((2, 2), 3, dtype=one.dtype)] * 2, op=rm.Adasum):
        same(out, torch.full((2, 2), 3), dtype)  # parallel: averaged


@check()
def grouped_of_several_dtypes():
    shapes, dtypes = [(3,), (2, 2), (0,), (5, 1), ()], ["float32", "int32", "float32", "bfloat16", "int32"]
    tensors = [values(rm.rank(), s, d) for s, d in zip(shapes, dtypes)]
    wants = [everybody(s).sum(0) for s in shapes]
    for got, want, dtype in zip(rm.grouped_allreduce(tensors, op=rm.Sum), wants, dtypes):
        same(got, want, dtype)
    copies = [t.clone() for t in tensors]
    outs = rm.grouped_allreduce_(copies, op=rm.Sum)
    assert all(out is c for out, c in zip(outs, copies))
    for got, want in zip(copies, wants):
        same(got, want)
    assert rm.grouped_allreduce([]) == [] == rm.grouped_allgather([]) == rm.grouped_reducescatter([])
    rows = [values(rm.rank(), (rm.rank() + i, 3), d) for i, d in enumerate(ALL)]
    for i, (got, dtype) in enumerate(zip(rm.grouped_allgather(rows), ALL)):
        same(got, torch.cat([values(r, (r + i, 3), dtype).double() for r in range(rm.size())]), dtype)
    counts, dtypes = (5, 1, 4), ("float32", "int64", "float32")
    outs = rm.grouped_reducescatter([values(rm.rank(), (n, 2), d) for n, d in zip(counts, dtypes)], op=rm.Sum)
    for got, n, dtype in zip(outs, counts, dtypes):
        same(got, part(everybody((n, 2)).sum(0)), dtype)


@check(dtype=ALL)
def allgather_ragged_and_broadcast(dtype):
    for tail in ((), (4,), (2, 3)):
        mine = values(rm.rank(), (rm.rank() * 2, *tail), dtype)
        same(rm.allgather(mine), torch.cat([values(r, (r * 2, *tail), dtype).double() for r in range(rm.size())]), dtype)
    for root in range(rm.size()):
        for shape in ((), (7,), (3, 5)):
            mine = values(rm.rank(), shape, dtype)
            same(rm.broadcast(mine, root), values(root, shape, dtype).double(), dtype)
            same(mine, values(rm.rank(), shape, dtype).double())
            assert rm.broadcast_(mine, root) is mine
            same(mine, values(root, shape, dtype).double(), dtype)


@check(dtype=REDUCIBLE)
def reducescatter_of_any_number_of_rows(dtype):
    for rows in (1, rm.size(), 2 * rm.size() + 1):
        same(rm.reducescatter(values(rm.rank(), (rows, 3), dtype), op=rm.Sum), part(everybody((rows, 3)).sum(0)), dtype)


@check(dtype=ALL)
def alltoall_with_splits(dtype):
    splits = [(rm.rank() + r) % 3 for r in range(rm.size())]
    want, counts = [], []
    for r in range(rm.size()):
        theirs = [(r + k) % 3 for k in range(rm.size())]
        want.append(values(r, (sum(theirs), 2), dtype).double().split(theirs)[rm.rank()])
        counts.append(theirs[rm.rank()])
    out, received = rm.alltoall(values(rm.rank(), (sum(splits), 2), dtype), splits=torch.tensor(splits, dtype=torch.int32))
    same(out, torch.cat(want), dtype)
    same(received, counts, "int32")
    even = rm.synchronize(rm.alltoall_async(values(rm.rank(), (2 * rm.size(),), dtype)))
    same(even, torch.cat([values(r, (2 * rm.size(),), dtype).double()[2 * rm.rank() : 2 * rm.rank() + 2] for r in range(rm.size())]), dtype)


@check()
def asynchronous_calls_in_different_orders():
    names = [f"t{i}" for i in range(100)]
    handles = {name: rm.allreduce_async(torch.full((5,), int(name[1:]) + rm.rank()), op=rm.Sum, name=name)
               for name in (names if rm.rank() % 2 == 0 else reversed(names))}  # fmt: skip
    for name in names:
        same(rm.synchronize(handles[name]), torch.full((5,), rm.size() * int(name[1:]) + sum(range(rm.size()))))


@check()
def large_tensors_are_equal_on_all_ranks_to_the_bit():
    mine = torch.randn(2_000_001, generator=torch.Generator().manual_seed(rm.rank()))
    total = rm.allreduce(mine, op=rm.Sum)
    every = rm.allgather(total[None, ::100].contiguous())
    assert all(torch.equal(row, every[0]) for row in every)
    near(total, sum(torch.randn(2_000_001, generator=torch.Generator().manual_seed(r)).double() for r in range(rm.size())), 1e-4)


@check()
def sparse_tensors():
    indices = torch.tensor([[0, 2 + rm.rank()], [1, 1]])
    mine = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (8, 2))
    total = sum(torch.sparse_coo_tensor([[0, 2 + r], [1, 1]], [1.0, 2.0], (8, 2)).to_dense() for r in range(rm.size()))
    same(rm.sparse_allreduce_async(mine, "sparse", rm.Sum)().to_dense(), total)
    same(rm.sparse_allreduce_async(mine, name="sparse", op=rm.Average)().to_dense(), total / rm.size())
    nothing = torch.sparse_coo_tensor(torch.zeros((2, 0), dtype=torch.int64), torch.zeros(0), (8, 2))
    alone = rm.sparse_allreduce_async(mine if rm.rank() == 0 else nothing, "one", rm.Sum)()
    same(alone.to_dense(), torch.sparse_coo_tensor([[0, 2], [1, 1]], [1.0, 2.0], (8, 2)).to_dense())
    raises(ValueError, ["Average and Sum"], lambda: rm.sparse_allreduce_async(mine, "bad", rm.Max))
    raises(ValueError, ["sparse COO"], lambda: rm.sparse_allreduce_async(torch.ones(2), "bad", rm.Sum))


@check()
def compression():
    small = rm.allreduce(torch.full((3,), 1.0 / 3 + rm.rank()), compression=rm.Compression.fp16, op=rm.Sum)
    assert small.dtype == torch.float32 and not torch.equal(small, torch.full((3,), rm.size() / 3 + sum(range(rm.size()))))
    near(small, torch.full((3,), rm.size() / 3 + sum(range(rm.size()))), 2e-3)
    same(rm.allreduce(torch.tensor([rm.rank()]), compression=rm.Compression.fp16, op=rm.Sum), [sum(range(rm.size()))], "int64")
    out = rm.reducescatter(torch.ones(rm.size(), 2, dtype=torch.float64), compression=rm.Compression.fp16)
    same(out, torch.ones(1, 2), "float64")


# ---- gradients ---------------------------------------------------------------------------------------------------------


@check()
def gradients_of_reductions():
    n = rm.size()
    x = torch.ones(4, requires_grad=True)
    weights = torch.arange(4.0) + rm.rank()
    (rm.allreduce(x, op=rm.Sum, prescale_factor=2.0) * weights).sum().backward()
    same(x.grad, 2 * (torch.arange(4.0) * n + sum(range(n))))
    x.grad = None
    rm.allreduce(x).sum().backward()  # the gradient is an expanded scalar: not contiguous
    same(x.grad, torch.ones(4))
    x.grad = None
    a, b = rm.grouped_allreduce([x, 2 * x], op=rm.Sum)
    (a + b).sum().backward()
    same(x.grad, torch.full((4,), 3.0 * n))
    y = torch.ones(n + 1, 2, requires_grad=True)
    rm.reducescatter(y, op=rm.Sum, prescale_factor=0.5).sum().backward()
    same(y.grad, torch.full((n + 1, 2), n * 0.5))
    y.grad = None
    (rm.grouped_reducescatter([y])[0] * (1 + rm.rank())).sum().backward()
    same(y.grad, torch.cat([torch.full((len(p), 2), 1.0 + r) for r, p in enumerate(torch.tensor_split(y, n))]))


@check()
def gradients_of_exchanges():
    n, r = rm.size(), rm.rank()
    x = torch.ones(r + 1, 3, requires_grad=True)
    every = torch.cat([torch.full((k + 1, 3), float(k)) for k in range(n)])
    rm.allgather(x).backward(every)
    same(x.grad, torch.full((r + 1, 3), float(r)))
    x.grad = None
    sum(g.sum() for g in rm.grouped_allgather([x, 2 * x])).backward()
    same(x.grad, torch.full((r + 1, 3), 3.0))
    y = torch.ones(5, requires_grad=True)
    (rm.broadcast(y, n - 1) * (1 + r)).sum().backward()
    same(y.grad, torch.full((5,), (n + 1) / 2 if r == n - 1 else 0.0))
    splits = [(r + k) % 2 + 1 for k in range(n)]
    z = torch.ones(sum(splits), 2, requires_grad=True)
    out, received = rm.alltoall(z, splits=splits)
    (out * (1 + r)).sum().backward()
    same(z.grad, torch.cat([torch.full((s, 2), 1.0 + k) for k, s in enumerate(splits)]))
    w = torch.ones(n, requires_grad=True)
    (rm.alltoall(w) * (1 + r)).sum().backward()
    same(w.grad, torch.arange(1.0, n + 1))


# ---- functions ---------------------------------------------------------------------------------------------------------


def model(seed=0, width=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2))


def data(rank, count=6):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 2, (count,), generator=generator)


@check()
def parameters_are_broadcast():
    for which in ("state_dict", "named_parameters", "parameters"):
        mine, want = model(rm.rank()), model(rm.size() - 1)
        params = getattr(mine, which)()
        rm.broadcast_parameters(params, root_rank=rm.size() - 1)
        for got, expected in zip(mine.parameters(), want.parameters()):
            same(got, expected)
    transposed = values(rm.rank(), (3, 4)).t()
    rm.broadcast_parameters([("t", transposed)], 0)
    same(transposed, values(0, (3, 4)).t())
    raises(ValueError, ["invalid params"], lambda: rm.broadcast_parameters("w", 0))
    raises(ValueError, ["invalid params"], lambda: rm.broadcast_parameters(None, 0))


OPTIMIZERS = ("SGD", "momentum", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "Adamax", "ASGD", "Rprop", "NAdam", "RAdam")


def optimizer_of(kind, net, rate):
    if kind == "momentum":
        return torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=0.1, nesterov=True)
    return getattr(torch.optim, kind)(net.parameters(), lr=rate)


@check(kind=OPTIMIZERS)
def optimizer_state_is_broadcast(kind):
    net = model(1)
    optimizer = optimizer_of(kind, net, 0.1 * (rm.rank() + 1))
    if rm.rank() != 0:  # the root has not made a step; on the others it counts for nothing
        F.cross_entropy(net(data(rm.rank())[0]), data(rm.rank())[1]).backward()
        optimizer.step()
    before = [p.detach().clone() for p in net.parameters()]
    rm.broadcast_optimizer_state(optimizer, root_rank=0)
    for p, value in zip(net.parameters(), before):
        same(p, value)  # weight decay or not
    rates = rm.allgather_object(optimizer.param_groups[0]["lr"])
    assert rates == [0.1] * rm.size(), rates
    if rm.rank() == 0:
        F.cross_entropy(net(data(0)[0]), data(0)[1]).backward()
        optimizer.step()
    rm.broadcast_optimizer_state(optimizer, 0)
    states = rm.allgather_object({k: {n: (v.tolist() if torch.is_tensor(v) else v) for n, v in s.items()} for k, s in optimizer.state_dict()["state"].items()})
    assert all(state == states[0] for state in states), kind
    assert kind == "SGD" or states[0] and len(states[0]) == len(before)
    net.zero_grad()
    F.cross_entropy(net(data(0)[0]), data(0)[1]).backward()
    optimizer.step()  # what came can be used


@check()
def lbfgs_state_is_refused():
    raises(ValueError, ["LBFGS"], lambda: rm.broadcast_optimizer_state(torch.optim.LBFGS(model().parameters()), 0))


@check()
def objects():
    assert rm.broadcast_object({"from": rm.rank(), "t": torch.ones(2)}, root_rank=rm.size() - 1)["from"] == rm.size() - 1
    assert rm.broadcast_object(lambda_of(rm.rank()), 0)() == 0 if "cloudpickle" in sys.modules else True
    assert rm.allgather_object("x" * rm.rank(), name="texts") == ["x" * r for r in range(rm.size())]
    rm.barrier()


def lambda_of(value):
    return lambda: value


# ---- DistributedOptimizer ----------------------------------------------------------------------------------------------


def whole_gradient(net, loss_of):
    """The mean over the ranks, computed on one."""
    gradients = []
    for r in range(rm.size()):
        net.zero_grad()
        loss_of(net, r).backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    net.zero_grad()
    return [torch.stack(g).mean(0) for g in zip(*gradients)]


def plain_loss(net, r):
    x, y = data(r)
    return F.cross_entropy(net(x), y)


def simple(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


OPTIONS = {
    "plain": {},
    "unnamed": {"named_parameters": None},
    "predivide": {"gradient_predivide_factor": 2.0},
    "groups": {"groups": 2},
    "listed groups": {"groups": "first two"},
    "sum": {"op": "Sum"},
    "fp16": {"compression": "fp16"},
}


@check(option=list(OPTIONS))
def the_optimizer_applies_the_mean_gradient(option):
    options = dict(OPTIONS[option])
    net, reference = simple(), simple()
    if options.get("groups") == "first two":
        options["groups"] = [list(net.parameters())[:2]]
    if "compression" in options:
        options["compression"] = rm.Compression.fp16
    scale = 1.0
    if options.get("op") == "Sum":
        options["op"], scale = rm.Sum, float(rm.size())
    options.setdefault("named_parameters", net.named_parameters())
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), **options)
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    other = torch.optim.SGD(reference.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        plain_loss(net, rm.rank()).backward()
        optimizer.step()
        for p, g in zip(reference.parameters(), whole_gradient(reference, plain_loss)):
            p.grad = g * scale
        other.step()
    for p, want in zip(net.parameters(), reference.parameters()):
        near(p, want, 5e-3 if option == "fp16" else 1e-5)


@check()
def backward_passes_add_up():
    net, reference = simple(), simple()
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), net.named_parameters(), backward_passes_per_step=2)
    for _ in range(2):
        plain_loss(net, rm.rank()).backward()
    raises(AssertionError, ["more than backward_passes_per_step"], lambda: plain_loss(net, rm.rank()).backward())
    # the failed pass has added nothing to what was sent; the weights follow from two passes
    optimizer.synchronize()
    optimizer.zero_grad()
    for _ in range(2):
        plain_loss(net, rm.rank()).backward()
    with optimizer.skip_synchronize():
        optimizer.synchronize()
        optimizer.step()
    for p, g in zip(reference.parameters(), whole_gradient(reference, plain_loss)):
        near(net.get_parameter(next(n for n, q in reference.named_parameters() if q is p)), p - 0.5 * 2 * g)
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    plain_loss(net, rm.rank()).backward()
    raises(AssertionError, ["race condition"], optimizer.zero_grad)
    optimizer.step()
    raises(ValueError, ["must be > 0"], lambda: optimizer.set_backward_passes_per_step(0))


@check(groups=[None, 1])
def parameters_without_a_gradient_on_some_ranks(groups):
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    for p in net.parameters():
        torch.nn.init.ones_(p)
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), groups=groups)
    for _ in range(2):
        optimizer.zero_grad()
        net["a" if rm.rank() == 0 else "b"](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    n = rm.size()
    same(net["a"].weight, torch.full((2, 2), 1 - 2 / n))
    near(net["b"].weight, torch.full((2, 2), 1 - 2 * (n - 1) / n))


@check()
def clipping_between_synchronize_and_step():
    net = simple()
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    plain_loss(net, rm.rank()).backward()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    assert norm > 1e-3 and rm.allgather(norm.reshape(1)).unique().numel() == 1
    with optimizer.skip_synchronize():
        optimizer.step()
    plain_loss(net, rm.rank()).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(w.message) for w in caught)


@check()
def a_closure_is_reduced_too():
    net, reference = simple(), simple()
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), net.named_parameters())

    def closure():
        optimizer.zero_grad()
        loss = plain_loss(net, rm.rank())
        loss.backward()
        return loss

    assert optimizer.step(closure) == plain_loss(reference, rm.rank())
    for p, q, g in zip(net.parameters(), reference.parameters(), whole_gradient(reference, plain_loss)):
        near(p, q - 0.5 * g)


@check(as_dense=[False, True])
def sparse_gradients(as_dense):
    torch.manual_seed(0)
    net = torch.nn.Embedding(10, 3, sparse=True)
    start = net.weight.detach().clone()
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), sparse_as_dense=as_dense)
    net(torch.tensor([0, 1 + rm.rank()])).sum().backward()
    optimizer.step()
    want = start.clone()
    want[0] -= 1
    want[1 : 1 + rm.size()] -= 1 / rm.size()
    near(net.weight, want)


@check()
def state_and_schedulers_of_the_wrapped_optimizer_go_on():
    net = simple()
    inner = torch.optim.Adam(net.parameters(), lr=1.0)
    plain_loss(net, 0).backward()
    inner.step()
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = rm.DistributedOptimizer(inner, net.named_parameters())
    assert optimizer.state_dict()["state"][0]["step"] == 1
    optimizer.zero_grad()
    plain_loss(net, rm.rank()).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5 and optimizer.state_dict()["state"][0]["step"] == 2
    saved = copy.deepcopy(optimizer.state_dict())
    plain_loss(net, rm.rank()).backward()
    optimizer.load_state_dict(saved)  # what is on its way is given up
    optimizer.zero_grad()
    sums = rm.allgather(torch.stack([p.detach().double().sum() for p in net.parameters()]).unsqueeze(0))
    assert all(torch.equal(row, sums[0]) for row in sums)


@check()
def the_adasum_optimizer_combines_steps():
    net = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), op=rm.Adasum)
    net(torch.ones(1, 2)).sum().backward()  # alike on all ranks: the steps are averaged
    optimizer.step()
    near(net.weight, torch.full((1, 2), -1.0))
    optimizer.zero_grad()
    net(torch.tensor([[1.0, 0.0]] if rm.rank() % 2 == 0 else [[0.0, 1.0]])).sum().backward()  # orthogonal: added
    optimizer.step()
    near(net.weight, torch.full((1, 2), -2.0))
    raises(AssertionError, ["Adasum"], lambda: contextlib.ExitStack().enter_context(optimizer.skip_synchronize()))


@check()
def optimizers_that_cannot_be_right():
    net = simple()
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    names = list(net.named_parameters())
    raises(ValueError, ["duplicates: 0.bias"], lambda: rm.DistributedOptimizer(sgd, [*names, names[1]]))
    raises(ValueError, ["were not named", "(2,)"], lambda: rm.DistributedOptimizer(sgd, names[:3]))
    raises(ValueError, ["sequence of tuples"], lambda: rm.DistributedOptimizer(sgd, net.parameters()))
    raises(ValueError, ["op != Average"], lambda: rm.DistributedOptimizer(sgd, names, op=rm.Sum, gradient_predivide_factor=2.0))
    raises(ValueError, ["must be > 0"], lambda: rm.DistributedOptimizer(sgd, names, backward_passes_per_step=0))
    raises(ValueError, ["groups should be"], lambda: rm.DistributedOptimizer(sgd, names, groups=-1))
    raises(ValueError, ["in one of them"], lambda: rm.DistributedOptimizer(sgd, names, groups=[[names[0][1]], [names[0][1]]]))
    raises(ValueError, ["already"], lambda: rm.DistributedOptimizer(rm.DistributedOptimizer(sgd, names), names))


# ---- SyncBatchNorm -----------------------------------------------------------------------------------------------------


@check(shape=["2d", "images", "half", "cumulative", "plain"])
def sync_batch_norm_is_batch_norm_of_the_whole_batch(shape):
    sizes = {"2d": (5, 3), "images": (4, 3, 2, 5)}.get(shape, (6, 3, 4))
    dtype = torch.float64 if shape != "half" else torch.bfloat16
    options = {"momentum": None} if shape == "cumulative" else {"affine": False, "track_running_stats": False} if shape == "plain" else {}
    batches = [torch.randn(sizes[0] + r, *sizes[1:], generator=torch.Generator().manual_seed(r), dtype=torch.float64) * (r + 1) for r in range(rm.size())]
    ours, theirs = rm.SyncBatchNorm(3, **options).to(torch.float64), torch.nn.BatchNorm1d(3, **options).to(torch.float64)
    theirs._check_input_dim = lambda input: None
    for step in range(2):
        mine, whole = batches[rm.rank()].to(dtype, copy=True).requires_grad_(), torch.cat(batches).requires_grad_()
        out, want = ours(mine), theirs(whole)
        weights = torch.cos(torch.arange(whole.numel(), dtype=torch.float64)).reshape(whole.shape)
        at = sum(len(b) for b in batches[: rm.rank()])
        (out * weights[at : at + len(mine)]).sum().backward()
        (want * weights).sum().backward()
        tolerance = 1e-8 if dtype == torch.float64 else 6e-2
        near(out, want[at : at + len(mine)], tolerance)
        near(mine.grad, whole.grad[at : at + len(mine)], tolerance)
        assert out.dtype == dtype
    if shape != "plain":
        near(ours.running_mean, theirs.running_mean, tolerance)
        near(ours.running_var, theirs.running_var, tolerance)
        assert ours.num_batches_tracked == 2
        near(rm.allreduce(ours.weight.grad, op=rm.Sum), theirs.weight.grad, tolerance * 10)
        ours.eval(), theirs.eval()
        near(ours(batches[0]), theirs(batches[0]), tolerance)
    raises(ValueError, ["at least 2D"], lambda: ours(torch.ones(3, dtype=torch.float64)))


# ---- elastic -----------------------------------------------------------------------------------------------------------


@check()
def torch_state():
    net = model(rm.rank())
    optimizer = rm.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.1 + rm.rank()), net.named_parameters())
    sampler = rm.elastic.ElasticSampler(range(20), seed=rm.rank())
    state = rm.elastic.TorchState(model=net, optimizer=optimizer, sampler=sampler, batch=rm.rank(), epoch=3)
    state.sync()
    for got, want in zip(net.parameters(), model(0).parameters()):
        same(got, want)
    assert state.batch == 0 and optimizer.param_groups[0]["lr"] == 0.1 and state.model is net

    def step():
        optimizer.zero_grad()
        plain_loss(net, rm.rank()).backward()
        optimizer.step()
        state.batch += 1

    step()
    state.commit()
    committed = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    for _ in range(2):  # twice: what was restored once is not changed by what follows
        step()
        state.restore()
        assert state.batch == 1
        for got, want in zip(net.state_dict().values(), committed[0].values()):
            same(got, want)
        assert optimizer.state_dict()["state"][0]["step"] == 1
        near(optimizer.state_dict()["state"][0]["exp_avg"], committed[1]["state"][0]["exp_avg"], 0)
    state.model = model(9)
    assert state.model is not net
    calls = []
    assert rm.elastic.run(lambda s, extra: calls.append(extra) or s.batch)(state, 7) == 1 and calls == [7]


@check()
def elastic_sampler():
    from ringmaster.torch.elastic import ElasticSampler

    sampler = ElasticSampler(range(2 * rm.size() + 1), shuffle=True, seed=3)
    mine = list(sampler)
    assert len(sampler) == len(mine) == 3
    every = [i for indices in rm.allgather_object(mine) for i in indices]
    assert set(every) == set(range(2 * rm.size() + 1))
    sampler.record_batch(0, 2)
    sampler.load_state_dict(sampler.state_dict())
    assert len(sampler) == 1 and set(sampler.remaining_indices).isdisjoint(
        i for indices in rm.allgather_object(mine[:2]) for i in indices
    )
    before = ElasticSampler(sampler.dataset, seed=3).remaining_indices
    sampler.set_epoch(1)
    assert len(sampler) == 3 and sampler.remaining_indices != before
    assert list(ElasticSampler([])) == []


# ---- errors, process sets ----------------------------------------------------------------------------------------------


@check()
def calls_that_cannot_be_right():
    ones = torch.ones(2)
    raises(ValueError, ["supersedes"], lambda: rm.allreduce(ones, average=True, op=rm.Sum))
    raises(ValueError, ["op=9"], lambda: rm.allreduce(ones, op=9))
    raises(ValueError, ["complex64"], lambda: rm.allreduce(torch.ones(1, dtype=torch.complex64)))
    raises(ValueError, ["int16"], lambda: rm.allreduce(torch.ones(1, dtype=torch.int16)))
    raises(ValueError, ["bool"], lambda: rm.allreduce(torch.ones(1, dtype=torch.bool), op=rm.Sum))
    for call in (rm.allreduce, rm.allreduce_, rm.allgather, rm.alltoall, rm.reducescatter, lambda t: rm.broadcast(t, 0), lambda t: rm.broadcast_(t, 0)):
        raises(ValueError, ["contiguous"], lambda call=call: call(torch.ones(4, 6).t()))
        raises(ValueError, ["not list"], lambda call=call: call([1.0]))
    for call in (rm.allgather, rm.alltoall, rm.reducescatter):
        raises(ValueError, ["at least one dimension"], lambda call=call: call(torch.tensor(1.0)))
    raises(ValueError, ["root 99"], lambda: rm.broadcast(ones, 99))
    raises(ValueError, ["splits"], lambda: rm.alltoall(ones, splits=[1]))
    raises(ValueError, ["whole numbers"], lambda: rm.alltoall(ones, splits=torch.ones(rm.size())))
    raises(ValueError, ["sum up"], lambda: rm.alltoall(ones, splits=[9] * rm.size()))
    raises(ValueError, ["layout"], lambda: rm.allreduce(torch.eye(2).to_sparse()))


MISMATCHES = {
    "shape": lambda odd: rm.allreduce(torch.zeros((2, 6) if odd else (3, 4)), name="m"),
    "dtype": lambda odd: rm.allreduce_(torch.zeros(4, dtype=torch.float32 if odd else torch.bfloat16), name="m"),
    "operation": lambda odd: rm.allreduce(torch.zeros(4), op=rm.Max if odd else rm.Min, name="m"),
    "root": lambda odd: rm.broadcast(torch.zeros(4), 1 if odd else 0, name="m"),
    "rows": lambda odd: rm.allgather(torch.zeros(2, 3 if odd else 4), name="m"),
    "group": lambda odd: rm.grouped_allreduce([torch.zeros(4)] if odd else [torch.zeros(2), torch.zeros(2)], name="m"),
    "scatter": lambda odd: rm.reducescatter(torch.zeros((4, 6) if odd else (6, 4)), name="m"),
}


@check(what=list(MISMATCHES))
def mismatches_are_errors_on_every_rank(what):
    error = raises(rm.HorovodInternalError, ["rank ", "sent "], lambda: MISMATCHES[what](rm.rank() == 1))
    assert isinstance(error, RuntimeError) and isinstance(error, rm.MismatchError)
    same(rm.allreduce(torch.ones(1), op=rm.Sum, name="m"), [rm.size()])  # the name is free again


@check()
def a_name_that_is_in_flight():
    if rm.rank() == 0:
        handle = rm.allreduce_async(torch.ones(2), op=rm.Sum, name="twice")
        raises(ValueError, ["in flight"], lambda: rm.allreduce_async(torch.ones(2), op=rm.Sum, name="twice"))
        rm.barrier()
    else:
        rm.barrier()
        handle = rm.allreduce_async(torch.ones(2), op=rm.Sum, name="twice")
    same(rm.synchronize(handle), torch.full((2,), rm.size()))


@check()
def process_sets():
    first, rest = SETS
    mine, ranks = (first, [0]) if rm.rank() == 0 else (rest, list(range(1, rm.size())))
    other = rest if rm.rank() == 0 else first
    same(rm.allreduce(torch.full((2,), rm.rank()), op=rm.Sum, process_set=mine), torch.full((2,), sum(ranks)))
    same(rm.broadcast(torch.tensor([rm.rank()]), ranks[-1], process_set=mine), [ranks[-1]])  # a rank of the job
    x = torch.ones(rm.rank() + 1, requires_grad=True)
    rm.allgather(x, process_set=mine).sum().backward()
    same(x.grad, torch.ones(rm.rank() + 1))
    raises(ValueError, ["not included"], lambda: rm.allreduce(torch.ones(1), process_set=other))
    net = simple(7)
    optimizer = rm.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), process_set=rest)
    start = [p.detach().clone() for p in net.parameters()]
    gradients = []
    for r in ranks:
        net.zero_grad(set_to_none=True)
        if mine is first:
            plain_loss(net, r).backward()
            gradients.append([p.grad.clone() for p in net.parameters()])
    if mine is first:  # no part of the set: it steps alone
        optimizer.step()
        for p, s, g in zip(net.parameters(), start, gradients[0]):
            near(p, s - g)
    else:
        plain_loss(net, rm.rank()).backward()
        optimizer.step()
        sums = rm.allgather(torch.stack([p.detach().double().sum() for p in net.parameters()])[None], process_set=rest)
        assert all(torch.equal(row, sums[0]) for row in sums)


@check()
def join():
    last = rm.size() - 1
    for _ in range(2 if rm.rank() == last else 1):
        rm.allreduce(torch.ones(2), op=rm.Sum, name=f"uneven.{_}")
    assert rm.join() in range(rm.size())


# ---- as a program ------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    torch.set_num_threads(1)
    CHECKS.run(rm)
