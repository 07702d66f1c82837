"""A rank that goes through everything that torch.distributed has, over the backend ringmaster. Run by tests/integration/test_client_torch.py
on each rank of a job; with --loss-curve BACKEND it trains with DistributedDataParallel and prints losses.
"""

import argparse
import datetime
import faulthandler
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def values(rank, shape, dtype=torch.float32):
    return ((torch.arange(torch.Size(shape).numel()) * 7 + rank * 3) % 5 + 1).reshape(shape).to(dtype)


def same(got, want):
    assert torch.equal(got.double(), torch.as_tensor(want).double()), (got, want)


def raises(kinds, words, call):
    try:
        call()
    except kinds as error:
        assert all(word in str(error) for word in words), str(error)
        return
    raise AssertionError(f"nothing was raised; expected {kinds} with {words}")


def reductions(rank, size, group=None, ranks=None):
    ranks = ranks or range(size)
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        every = torch.stack([values(r, (3, 4)) for r in ranks]).double()
        for op, want in ((dist.ReduceOp.SUM, every.sum(0)), (dist.ReduceOp.MIN, every.amin(0)), (dist.ReduceOp.MAX, every.amax(0))):
            x = values(rank, (3, 4), dtype)
            dist.all_reduce(x, op, group=group)
            same(x, want)
    x = values(rank, (4, 3)).t()  # not contiguous
    work = dist.all_reduce(x, dist.ReduceOp.AVG, group=group, async_op=True)
    assert work.wait() and work.is_completed()
    near = torch.stack([values(r, (4, 3)).t() for r in ranks]).mean(0)
    assert torch.allclose(x, near)
    x = values(rank, (5,))
    dist.reduce(x, ranks[-1], group=group)
    same(x, sum(values(r, (5,)) for r in ranks) if rank == ranks[-1] else values(rank, (5,)))
    future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
    same(future.then(lambda f: f.value()[0] * 2).wait(), torch.full((3,), 2.0 * len(ranks)))
    out = torch.empty(2, 3)
    dist.reduce_scatter_tensor(out, values(rank, (2 * len(ranks), 3)), group=group)
    place = list(ranks).index(rank)
    same(out, sum(values(r, (2 * len(ranks), 3)) for r in ranks)[2 * place : 2 * place + 2])
    sizes = [1 + p for p in range(len(ranks))]  # parts of different sizes
    out = torch.empty(sizes[place])
    dist.reduce_scatter(out, list(values(rank, (sum(sizes),)).split(sizes)), group=group)
    same(out, sum(values(r, (sum(sizes),)) for r in ranks).split(sizes)[place])


def exchanges(rank, size, group=None, ranks=None):
    ranks = list(ranks or range(size))
    n, place = len(ranks), ranks.index(rank)
    for root in ranks:
        x = values(rank, (2, 3), torch.bfloat16)
        dist.broadcast(x, root, group=group)
        same(x, values(root, (2, 3)))
    outs = [torch.empty(2, 2, dtype=torch.bool) for _ in ranks]
    dist.all_gather(outs, values(rank, (2, 2)) > 2, group=group)
    for r, out in zip(ranks, outs):
        same(out, values(r, (2, 2)) > 2)
    outs = [torch.empty(r + 1) for r in ranks]  # ragged
    dist.all_gather(outs, torch.full((rank + 1,), float(rank)), group=group)
    for r, out in zip(ranks, outs):
        same(out, torch.full((r + 1,), float(r)))
    whole = torch.empty(n * 2, 2)
    dist.all_gather_into_tensor(whole, values(rank, (2, 2)), group=group)
    same(whole, torch.cat([values(r, (2, 2)) for r in ranks]))
    parts = [torch.empty(3) for _ in ranks] if place == 0 else None
    dist.gather(torch.full((3,), float(rank)), parts, ranks[0], group=group)
    if place == 0:
        same(torch.stack(parts), torch.tensor(ranks).float()[:, None].expand(n, 3))
    out = torch.empty(2)
    dist.scatter(out, [torch.full((2,), 10.0 + r) for r in ranks] if place == n - 1 else None, ranks[-1], group=group)
    same(out, torch.full((2,), 10.0 + rank))
    out = torch.empty(n, dtype=torch.int64)
    dist.all_to_all_single(out, torch.full((n,), rank), group=group)
    same(out, ranks)
    sent, received = [place + 1] * n, [p + 1 for p in range(n)]
    out = torch.empty(sum(received), 2)
    dist.all_to_all_single(out, torch.full((sum(sent), 2), float(rank)), received, sent, group=group)
    same(out, torch.cat([torch.full((p + 1, 2), float(r)) for p, r in enumerate(ranks)]))
    outs = [torch.empty(p + 1) for p in range(n)]
    dist.all_to_all(outs, [torch.full((place + 1,), float(rank)) for _ in ranks], group=group)
    for p, (r, out) in enumerate(zip(ranks, outs)):
        same(out, torch.full((p + 1,), float(r)))
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": r} for r in ranks]
    listed = [str(rank)]
    dist.broadcast_object_list(listed, ranks[-1], group=group)
    assert listed == [str(ranks[-1])]
    dist.barrier(group=group)


def wrong(rank, size):
    raises((RuntimeError,), ["rank 1", "sent"], lambda: dist.all_reduce(torch.ones(3 if rank == 1 else 4)))
    work = dist.all_reduce(torch.ones(3 if rank == 1 else 4), async_op=True)
    raises(RuntimeError, ["rank 1"], lambda: work.get_future().wait())
    assert not work.is_success() and "rank 1" in str(work.exception())
    raises(RuntimeError, ["rank 1"], lambda: dist.all_reduce(torch.ones(1)) if rank == 1 else dist.broadcast(torch.ones(1), 0))
    raises((ValueError, RuntimeError), ["no reduction"], lambda: dist.all_reduce(torch.ones(1, dtype=torch.int32), dist.ReduceOp.BAND))
    raises(NotImplementedError, ["from which rank"], lambda: dist.recv(torch.ones(1)))
    x = torch.ones(1)
    dist.all_reduce(x)
    same(x, [size])


def many(rank, size):
    works = []
    tensors = [torch.full((3,), float(i + rank)) for i in range(2500)]  # more than there are names
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, async_op=True))
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        same(tensor, torch.full((3,), float(size * i + sum(range(size)))))


def everything():
    dist.init_process_group("ringmaster", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "ringmaster"
    reductions(rank, size)
    exchanges(rank, size)
    evens, odds = (dist.new_group(list(range(start, size, 2))) for start in (0, 1))
    mine = evens if rank % 2 == 0 else odds
    reductions(rank, size, mine, range(rank % 2, size, 2))
    exchanges(rank, size, mine, range(rank % 2, size, 2))
    again = dist.new_group(list(range(0, size, 2)))  # the same ranks: another group, the same process set
    if rank % 2 == 0:
        a, b = torch.ones(2), torch.full((2,), 3.0)
        first, second = dist.all_reduce(a, group=evens, async_op=True), dist.all_reduce(b, group=again, async_op=True)
        second.wait(), first.wait()
        same(torch.cat([a, b]), [dist.get_world_size(evens)] * 2 + [3 * dist.get_world_size(evens)] * 2)
    wrong(rank, size)
    many(rank, size)
    dist.barrier()
    dist.destroy_process_group()


class Net(torch.nn.Module):
    def __init__(self, two_ways):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm, self.last = torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 3)
        self.other = torch.nn.Linear(8, 64) if two_ways else None

    def forward(self, x, other=False):
        x = self.other(x) if other else self.first(x)
        return self.last(torch.tanh(self.norm(x)))


def losses(rank, size, steps=30, **options):
    two_ways = options.get("find_unused_parameters", False)
    model = DistributedDataParallel(Net(two_ways), bucket_cap_mb=0.001, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    curve = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 8, generator=generator)
        y = (x[:, :3].argmax(1) + (x[:, 3] > 0)) % 3
        other = two_ways and (step + rank) % 3 == 0
        if step % 5 == 4 and not options.get("static_graph"):
            with model.no_sync():
                F.cross_entropy(model(x, other), y).backward()
        loss = F.cross_entropy(model(x, other), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        curve.append(total.item() / size)
    return curve


def train(backend):
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    curves = {
        "plain": losses(rank, size),
        "static": losses(rank, size, static_graph=True, gradient_as_bucket_view=True),
        "two ways": losses(rank, size, find_unused_parameters=True),
        "two ways, views": losses(rank, size, find_unused_parameters=True, gradient_as_bucket_view=True),
    }
    print(json.dumps({"rank": rank, "curves": curves}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss-curve", metavar="BACKEND")
    args = parser.parse_args()
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(float(os.environ.get("LIMIT_S", "100")), exit=True)  # says where it hangs
    if "ringmaster" not in dist.Backend.backend_list and not hasattr(dist.Backend, "_ensure_backend_registered"):
        import ringmaster.torch.distributed  # noqa: F401
    sys.exit(train(args.loss_curve) if args.loss_curve else everything())
