"""ringmaster.torch on tensors that the library takes for a GPU's: torch sees memory of the host, the driver (tests/gpu) device memory.
So what torch itself does on a GPU (streams, its allocator) is not shown here; that every layer hands over addresses and stream is.

    torch_gpu.py LIBRARY
"""

import ctypes
import sys

import torch

cuda = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # libcuda.so.1 by its name: the library finds this one


class Fake(ctypes.Structure):
    """The beginning of struct fake_cuda."""

    _fields_ = [("alloc", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t))]


import ringmaster.torch as rm  # noqa: E402  after the driver
from ringmaster.torch import _memory  # noqa: E402

fake = Fake.in_dll(cuda, "fake_cuda")
asked = []


def on_gpu(values):
    address = fake.alloc(0, values.numel() * values.element_size())
    memory = (ctypes.c_char * (values.numel() * values.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=values.dtype).view(values.shape).copy_(values)


def stream_of(tensors):
    asked.append(len(tensors))
    return 0


_memory.stream_of = stream_of
rm.init()
rank, size = rm.rank(), rm.size()
total = size * (size - 1) // 2

for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64):
    x = on_gpu(torch.full((300, 7), rank, dtype=dtype))
    assert rm.allreduce_(x, op=rm.Sum) is x
    assert torch.equal(x, torch.full((300, 7), total, dtype=dtype)), x
group = [on_gpu(torch.full((n,), float(rank + n))) for n in range(1, 9)]
rm.grouped_allreduce_(group, op=rm.Average)
for n, x in zip(range(1, 9), group):
    assert torch.allclose(x, torch.full((n,), total / size + n)), x
x = on_gpu(torch.full((5000,), float(rank)))
rm.broadcast_(x, root_rank=1)
assert torch.equal(x, torch.ones(5000)), x
assert asked == [1] * 5 + [8, 1], asked

import ringmaster.torch.distributed  # noqa: E402, F401
import torch.distributed as dist  # noqa: E402

dist.init_process_group("ringmaster")
x = on_gpu(torch.full((1000,), float(rank)))
dist.all_reduce(x)
assert torch.equal(x, torch.full((1000,), float(total))), x
dist.broadcast(on := on_gpu(torch.full((10,), float(rank))), src=1)
assert torch.equal(on, torch.ones(10)), on
assert asked == [1] * 5 + [8, 1, 1, 1], asked
try:
    rm.allreduce_(torch.ones(3), op=rm.Sum)  # not in device memory
except ValueError as error:
    assert "no address of any" in str(error), error
else:
    raise AssertionError("host memory was taken for a GPU's")
print("right", rank)
