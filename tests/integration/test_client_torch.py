"""ringmaster.torch on the real ring: the backend of torch.distributed, checkpoints, elastic states, and Horovod's scripts by its names.
What each function does is in tests/conformance/checks_torch.py.
"""

import json
import re
import subprocess
import textwrap

import pytest

from conftest import PATIENCE_S, ROOT
from group import Group

VENV = ROOT / "build/venv-torch"
pytestmark = pytest.mark.timeout_s(330)  # importing torch takes its time where others work, too


@pytest.fixture
def python_path():
    path = VENV / "bin/python"
    if not path.exists():
        pytest.fail(f"{path} is missing: run make deps-torch")
    return path


@pytest.fixture
def env(env, python_path):
    """torch's environment first in PATH."""
    env["PATH"] = f"{VENV / 'bin'}:{env['PATH']}"
    env["OMP_NUM_THREADS"] = "1"
    return env


@pytest.fixture
def run(ringmaster, job_dir):
    """run(ranks, command...) → {rank: output} of a job that has succeeded."""

    def call(ranks, *command, name="job", **more):
        directory = job_dir.parent / f"{job_dir.name}-{name}"
        result = ringmaster("run", "-np", ranks, "--no-logs", "--job-dir", directory, "--", *command, timeout_s=280, **more)
        logs = {rank: "".join(p.read_text() for p in sorted((directory / f"logs/worker-{rank}").glob("[0-9]*.log"))) for rank in range(ranks)}
        assert result.returncode == 0, result.stdout + result.stderr + "".join(logs.values())
        return logs

    return call


# ---- torch.distributed -------------------------------------------------------------------------------------------------


def test_every_collective_of_torch_distributed(run):
    run(3, "python", ROOT / "tests/programs/torch_backend.py")


MESSAGES = """
import torch, torch.distributed as dist
dist.init_process_group("ringmaster")
rank, size = dist.get_rank(), dist.get_world_size()

# round and round, blocking
token = torch.zeros(5)
for turn in range(3):
    if rank == 0:
        token += 1
        dist.send(token, 1 % size)
        assert dist.recv(token, size - 1) == size - 1
    else:
        assert dist.recv(token, rank - 1) == rank - 1
        token += 1
        dist.send(token, (rank + 1) % size)
if rank == 0:
    assert token.tolist() == [3.0 * size] * 5, token

# tags: not in the order in which they were sent; kinds of tensors
if rank == 0:
    works = [dist.isend(torch.full((3, 2), 10 * tag, dtype=torch.int64), 1, tag=tag) for tag in range(3)]
    works += [dist.isend(torch.arange(12.0).view(3, 4).t(), 1, tag=9), dist.isend(torch.ones(200000, dtype=torch.bfloat16), 1, tag=8)]
    [work.wait() for work in works]
elif rank == 1:
    for tag in (2, 0, 1):
        got = torch.empty(3, 2, dtype=torch.int64)
        dist.recv(got, 0, tag=tag)
        assert (got == 10 * tag).all(), (tag, got)
    big, turned = torch.empty(200000, dtype=torch.bfloat16), torch.empty(3, 4).t()
    dist.recv(big, 0, tag=8)
    dist.recv(turned, 0, tag=9)
    assert big.sum() == 200000 and torch.equal(turned, torch.arange(12.0).view(3, 4).t())

# both ways at once, with all
mine = [torch.full((2,), float(rank)) for _ in range(size)]
theirs = [torch.empty(2) for _ in range(size)]
others = [r for r in range(size) if r != rank]
batch = [dist.P2POp(dist.isend, mine[r], r) for r in others] + [dist.P2POp(dist.irecv, theirs[r], r) for r in others]
[work.wait() for work in dist.batch_isend_irecv(batch)]
assert all((theirs[r] == r).all() for r in others), theirs

# many, beside a collective; and in a smaller group, whose ranks count anew
for n in range(40):
    dist.isend(torch.tensor([float(n)]), (rank + 1) % size)
total = torch.ones(1)
dist.all_reduce(total)
for n in range(40):
    got = torch.empty(1)
    dist.recv(got, (rank - 1) % size)
    assert got.item() == n, (got, n)
pair = dist.new_group([0, size - 1])
if rank == 0:
    dist.send(torch.tensor([7]), size - 1, group=pair)
elif rank == size - 1:
    got = torch.empty(1, dtype=torch.int64)
    dist.recv(got, 0, group=pair)
    assert got.item() == 7

try:
    dist.recv(torch.empty(1))
except NotImplementedError as error:
    assert "from which rank" in str(error)
else:
    raise AssertionError("from any source")
dist.barrier()
dist.destroy_process_group()
print("all well", flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_torch_distributed(run, ranks):
    logs = run(ranks, "python", "-c", MESSAGES)
    assert all("all well" in log for log in logs.values()), logs


def test_data_parallel_training_has_the_loss_curve_that_it_has_over_gloo(run):
    curves = {}
    for backend in ("ringmaster", "gloo"):
        logs = run(2, "python", ROOT / "tests/programs/torch_backend.py", "--loss-curve", backend, name=backend)
        curves[backend] = [json.loads(logs[rank].splitlines()[-1])["curves"] for rank in range(2)]
    ours, theirs = curves["ringmaster"], curves["gloo"]
    assert ours[0] == ours[1]
    assert set(ours[0]) == {"plain", "static", "two ways", "two ways, views"}
    for name, curve in ours[0].items():
        assert curve == pytest.approx(theirs[0][name], rel=1e-4), name
        assert curve[-1] < curve[0]


def test_a_world_that_is_not_ringmasters_is_refused(run):
    script = """
        import os, torch.distributed as dist
        os.environ["RANK"] = str(1 - int(os.environ["RANK"]))
        try:
            dist.init_process_group("ringmaster")
        except ValueError as error:
            print(error, flush=True)
    """
    logs = run(2, "python", "-c", textwrap.dedent(script))
    assert "torch.distributed says that this is rank 1 of 2, Ringmaster that it is rank 0 of 2" in logs[0]


# ---- tensors in GPU memory --------------------------------------------------------------------------------------------


def test_gpu_tensors_are_handed_over_as_they_are(run):
    logs = run(2, "python", ROOT / "tests/programs/torch_gpu.py", ROOT / "build/tests/gpu/libcuda.so.1")
    assert [logs[rank].splitlines()[-1] for rank in range(2)] == ["right 0", "right 1"]


# ---- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_run_that_lost_a_rank_ends_with_the_same_weights(run):
    hashes = {}
    for name, options in {"whole": [], "lost": ["--lose-rank", "1"]}.items():
        logs = run(
            2, "python", ROOT / "examples/pytorch/train.py", "--steps", "60", "--save-every", "7", *options, name=name
        )  # fmt: skip
        assert ("goes on after step 28" in logs[0]) == (name == "lost"), logs[0]
        hashes[name] = [re.findall(r"weights ([0-9a-f]{64})", logs[rank])[-1] for rank in range(2)]
    assert len({*hashes["whole"], *hashes["lost"]}) == 1, hashes


STATES = """
import os, sys, random, torch
import ringmaster.torch as rm
from ringmaster.torch import checkpoint
rm.init()
rank = rm.rank()

class Part:
    def __init__(self, state):
        self.state = state
    def state_dict(self):
        return self.state
    def load_state_dict(self, state):
        self.state = state

def content():
    generator = torch.Generator().manual_seed(3)
    tensors = {str(d).split(".")[1]: (torch.randn(5, 3, generator=generator) * 50).abs().to(d) for d in
               (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)}
    return {"tensors": tensors, "scalar": torch.tensor(2.5, dtype=torch.bfloat16), "none": torch.zeros(0, 4), "t": torch.arange(6.0).view(2, 3).t(),
            0: {"step": torch.tensor(7.0), "betas": (0.9, 0.999), "names": ["a", None, True, 3, -0.0, "text"]}, "empty": {}, "nan": float("nan")}

def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and repr(a) == repr(b)

part = Part(content())
if checkpoint.resume_step() is None:
    for bad, why in (({"o": object()}, "part/o is of type object"), ({"c": torch.ones(1, dtype=torch.complex64)}, "complex64"), ({1.5: 0}, "1.5")):
        try:
            checkpoint.save(1, {"part": Part(bad)})
            raise SystemExit("no error")
        except ValueError as error:
            assert why in str(error), error
    torch.manual_seed(100 + rank), random.seed(200 + rank)
    torch.rand(3), random.random()
    assert checkpoint.restore({"part": part}) is None
    assert checkpoint.save(4, {"part": part}, {"rank": rank})
    assert checkpoint.wait(90) == 4
    print("next", torch.rand(1).item(), random.random(), flush=True)
    if rank == 1:
        os.kill(os.getpid(), 9)
    rm.join()
    raise SystemExit("rank 1 came back")
try:
    checkpoint.restore({"other": part})
    raise SystemExit("no error")
except ValueError as error:
    assert "['part']" in str(error) and "['other']" in str(error), error
part = Part(None)
found = checkpoint.restore({"part": part})
assert found.step == 4 and found.extra == {"rank": rank}, found
assert equal(part.state, content()), part.state
print("next", torch.rand(1).item(), random.random(), flush=True)

# A checkpoint of three ranks, restored by two.
from ringmaster import checkpoint as core
arrays = {}
tree = {"part": checkpoint._encode(content(), "part", arrays)}
saved = [{"state": tree, "generators": {}, "user": {"seen": r, "epoch": 2}} for r in range(3)]
core.restore = lambda resplit: core.Restored(9, arrays, dict(resplit(saved)))
assert checkpoint.restore({"part": part}) == (9, {"epoch": 2}) and equal(part.state, content())
assert checkpoint.restore({"part": part}, resplit=lambda extras: {"seen": sum(e["seen"] for e in extras)}) == (9, {"seen": 3})
"""


def test_states_of_every_kind_come_back(run, tmp_path):
    script = tmp_path / "states.py"
    script.write_text(STATES)
    logs = run(2, "python", script)
    for rank in range(2):
        drawn = re.findall(r"next (.*)", logs[rank])
        assert len(drawn) == 2 and drawn[0] == drawn[1], logs[rank]
    assert re.findall(r"next (.*)", logs[0]) != re.findall(r"next (.*)", logs[1])


# ---- Horovod's names ---------------------------------------------------------------------------------------------------


def test_a_script_for_horovod_runs_unchanged(run):
    script = ROOT / "examples/pytorch/train_horovod.py"
    assert "ringmaster" not in script.read_text().split('"""')[2]
    logs = run(2, "python", script, "--epochs", "6", "--fp16-allreduce")
    accuracies = [float(found) for found in re.findall(r"accuracy (\S+)", logs[0])]
    assert len(accuracies) == 6 and accuracies[-1] > 0.8, logs[0]
    assert "accuracy" not in logs[1]


ELASTIC = """
import os
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
dataset = torch.utils.data.TensorDataset(torch.arange(96.0).view(32, 3) / 96)
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=False)
print("begun", flush=True)

@hvd.elastic.run
def train(state):
    while state.epoch < 6:
        for index, (x,) in enumerate(torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)):
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
            if state.epoch == 3 and index == 2 and hvd.rank() == int(os.environ["VICTIM"]) and os.environ["RINGMASTER_ROUND"] == "1":
                os.kill(os.getpid(), 9)
            optimizer.step()
            sampler.record_batch(index, 2)
            state.seen += 2
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()

def on_reset():
    print("reset at epoch", state.epoch, flush=True)

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, seen=0)
state.register_reset_callbacks([on_reset])
train(state)
print("done", state.epoch, state.seen, [p.tolist() for p in model.parameters()], flush=True)
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_an_elastic_script_for_horovod_survives_a_lost_rank(keep, env, sidecar_path, launch_path, python_path, client_library, tmp_path, wait_for, victim):
    path = tmp_path / "train.py"
    path.write_text(ELASTIC)
    package = ROOT / "client/python"
    variables = {**env, "PYTHONPATH": f"{package}:{package}/shim", "RINGMASTER_LIBRARY_DIR": str(client_library.parent), "VICTIM": str(victim)}
    commands = {f"worker-{i}": [python_path, path] for i in range(2)}
    group = keep(Group(sidecar_path, launch_path, commands, env=variables, policy={"backoffBaseSeconds": 0, "elastic": True})).start()
    wait_for(lambda: all(p.poll() is not None for p in group.launchers.values()), 280, "the end of the job")
    outs = [group.out(member) for member in group.members]
    errors = "".join((group.dir / member / "err").read_text()[-3000:] for member in group.members)
    assert all(p.returncode == 0 for p in group.launchers.values()), errors
    assert outs[1 - victim].count("begun") == 1 and outs[victim].count("begun") == 2, outs
    assert "reset at epoch 3" in outs[1 - victim] and "reset" not in outs[victim], outs
    done = [re.findall(r"done .*", out) for out in outs]
    assert done[0] == done[1] and len(done[0]) == 1 and done[0][0].startswith("done 6 96 "), outs


def test_the_shim_is_there_for_jobs_that_ask_for_it_alone(ringmaster, write_job, job_dir):
    script = "import importlib.util as u; print('there:', u.find_spec('horovod') is not None, flush=True)"
    for frameworks, there in ((["Horovod"], True), (["PyTorch"], False)):
        job = write_job({"Worker": (1, ["python", "-c", script])}, name=frameworks[0].lower(), frameworks=frameworks)
        result = ringmaster("run", "-f", job, "--job-dir", job_dir, "--overwrite")
        assert result.returncode == 0 and f"there: {there}" in result.stdout, result.stdout + result.stderr


def test_modules_of_horovod_are_ours(env, client_library, python_path):
    package = ROOT / "client/python"
    script = """
        import horovod, ringmaster
        import horovod.torch as hvd, horovod.torch.elastic, horovod.torch.mpi_ops, horovod.common.util
        from horovod.torch.elastic.state import StateHandler, get_handler_registry
        from horovod.torch.elastic.sampler import ElasticSampler
        from horovod.torch.compression import Compression
        from horovod.torch.functions import broadcast_object
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.process_sets import ProcessSet
        from horovod.common.elastic import run_fn
        import ringmaster.torch as rm
        assert hvd is rm and horovod.torch is rm and horovod.torch.mpi_ops is rm.mpi_ops and hvd.HorovodInternalError is HorovodInternalError
        assert rm.__spec__.name == "ringmaster.torch" and hvd.ProcessSet is ProcessSet and Compression is rm.Compression
        assert horovod.__version__ == ringmaster.__version__ and horovod.common.util.split_list([1, 2, 3], 2) == [[1, 2], [3]]
        try:
            import horovod.spark
        except ModuleNotFoundError as error:
            assert "horovod.spark" in str(error)
        hvd.init()
        assert hvd.size() == 1 and hvd.gloo_built() and not hvd.mpi_built()
        print("well")
    """
    variables = {**env, "PYTHONPATH": f"{package}:{package}/shim", "RINGMASTER_LIBRARY_DIR": str(client_library.parent)}
    command = [python_path, "-W", "error::ImportWarning", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0 and done.stdout == "well\n", done.stderr


def test_horovod_run_starts_ranks_of_this_machine(env, ringmaster_path, tmp_path, python_path):
    package = ROOT / "client/python"
    (tmp_path / "work.py").write_text(
        "def work(a, b=0):\n"
        "    import ringmaster as rm\n"
        "    rm.init()\n"
        "    if a < 0:\n"
        "        raise ArithmeticError('below zero')\n"
        "    return rm.rank(), rm.allgather_object(a + b)\n"
    )
    script = """
        import horovod, work
        print(horovod.run(work.work, args=(1,), kwargs={"b": 2}, np=2))
        for options, kind in (({"hosts": "elsewhere:2"}, ValueError), ({"use_mpi": True}, ValueError), ({"args": (-1,)}, RuntimeError)):
            try:
                horovod.run(work.work, **{"args": (1,), **options})
            except kind as error:
                print(kind.__name__, "below zero" in str(error))
    """
    variables = {**env, "PYTHONPATH": f"{package}:{package}/shim:{tmp_path}", "RINGMASTER_COMMAND": str(ringmaster_path)}
    done = subprocess.run([python_path, "-c", textwrap.dedent(script)], env=variables, capture_output=True, text=True, timeout=90)
    assert done.stdout.splitlines() == ["[(0, [3, 3]), (1, [3, 3])]", "ValueError False", "ValueError False", "RuntimeError True"], done.stdout + done.stderr
