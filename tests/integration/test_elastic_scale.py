"""The number of workers changes while the job runs: who stays keeps its process, and goes on with what it had."""

import json
import os
import re
import signal
import textwrap

import pytest

from conftest import ROOT

TORCH = ROOT / "build/venv-torch"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}

pytestmark = pytest.mark.timeout_s(900)  # frameworks are imported again and again

# As Horovod's documentation has elastic training written, with a stop file in place of a last epoch and prints for the test.
HOROVOD = """
    import os, pathlib, time
    import horovod.{module} as hvd
    {imports}
    hvd.init()
    {make}
    stop = pathlib.Path(os.environ["STOP"])
    print("begun", os.getpid(), hvd.rank(), hvd.size(), flush=True)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 100000):
            for state.batch in range(state.batch, 10):
                {step}
                if state.batch == 5:
                    state.commit()
                time.sleep(0.01)
            state.batch = 0
            if hvd.broadcast_object(stop.exists(), 0):
                return

    def on_state_reset():
        print("reset", os.getpid(), hvd.rank(), hvd.size(), "at batch", state.batch, flush=True)

    {state}
    state.register_reset_callbacks([on_state_reset])
    train(state)
    print("done", os.getpid(), hvd.rank(), hvd.size(), {weights}, flush=True)
"""

TORCH_SCRIPT = HOROVOD.format(
    module="torch",
    imports="import torch",
    make="torch.manual_seed(hvd.rank()); model = torch.nn.Linear(4, 1); optimizer = hvd.DistributedOptimizer("
    "torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())",
    step="optimizer.zero_grad(); model(torch.randn(8, 4)).pow(2).mean().backward(); optimizer.step()",
    state="state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0)",
    weights="[w.tolist() for w in model.parameters()]",
)

KERAS_SCRIPT = HOROVOD.format(
    module="tensorflow",
    imports="import tensorflow as tf",
    make="model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)]); optimizer = tf.keras.optimizers.SGD(0.01);"
    " optimizer.build(model.trainable_variables)",
    step="""with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(tf.random.normal((8, 4))) ** 2)
                tape = hvd.DistributedGradientTape(tape)
                optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))""",
    state="state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0)",
    weights="[w.tolist() for w in model.get_weights()]",
)


class Job:
    """A job of the local runner whose workers come and go."""

    def __init__(self, runner, ringmaster, job_dir, wait_for):
        self.runner, self.ringmaster, self.dir, self.wait_for = runner, ringmaster, job_dir, wait_for

    def said(self):
        """{member: what its processes have written}"""
        return {path.name: "".join(log.read_text() for log in sorted(path.glob("[0-9]*.log"))) for path in (self.dir / "logs").glob("worker-*")}

    def scale(self, workers):
        done = self.ringmaster("scale", "--job-dir", self.dir, str(workers))
        assert done.returncode == 0, done.stderr

    def status(self):
        return json.loads((self.dir / "status.json").read_text())

    def everything(self):
        errors = {path: path.read_text()[-3000:] for path in (self.dir / "logs").glob("*/sidecar.log")}
        return f"{self.said()}\n{self.runner.out_path.read_text()}\n{self.runner.err_path.read_text()}\n{errors}"

    def wait_size(self, size):
        """Until every rank is in a ring of this size; {member: its process}."""
        pids = {}

        def all_there():
            assert self.runner.poll() is None, self.everything()
            for member, text in self.said().items():
                newest = re.findall(r"(?:begun|reset) (\d+) (\d+) (\d+)", text)[-1:]
                if newest and newest[0][2] == str(size):
                    pids[member] = int(newest[0][0])
            return all(f"worker-{rank}" in pids for rank in range(size))

        self.wait_for(all_there, 250, f"a ring of {size}")
        return {member: pids[member] for member in sorted(pids) if int(member.split("-")[1]) < size}

    def finish(self, stop):
        stop.touch()
        assert self.runner.wait(250) == 0, self.everything()
        done = [re.findall(r"done \d+ \d+ \d+ (.*)", text) for text in self.said().values()]
        return [words[0] for words in done if words]


@pytest.fixture
def begin(ringmaster, ringmaster_start, job_dir, client_library, tmp_path, wait_for):
    def start(script, ranks, python, *flags):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        variables = {"STOP": tmp_path / "stop", "RINGMASTER_LIBRARY_DIR": client_library.parent, **QUIET}
        more = {name: str(value) for name, value in variables.items()}
        runner = ringmaster_start("run", "-np", str(ranks), *flags, "--job-dir", job_dir, "--plain", "--", python, path, env_more=more)
        return Job(runner, ringmaster, job_dir, wait_for)

    return start


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_script_of_horovods_documentation_with_a_worker_added_and_one_killed(begin, tmp_path, python_path, framework):
    script, python = (TORCH_SCRIPT, TORCH / "bin/python") if framework == "torch" else (KERAS_SCRIPT, python_path)
    job = begin(script, 2, python, "--min-np", "1", "--max-np", "4")
    first = job.wait_size(2)
    job.scale(3)
    grown = job.wait_size(3)
    assert {member: grown[member] for member in first} == first, "who was there keeps its process"
    os.kill(grown["worker-1"], signal.SIGKILL)
    job.wait_for(lambda: job.said()["worker-1"].count("begun") == 2, what="the killed worker's successor")
    last = job.wait_size(3)
    assert last["worker-1"] != grown["worker-1"], "and who was killed is started again"
    assert (last["worker-0"], last["worker-2"]) == (grown["worker-0"], grown["worker-2"])
    weights = job.finish(tmp_path / "stop")
    assert len(weights) == 3 and len(set(weights)) == 1, weights
    assert len(re.findall(r"reset .* at batch 5$", job.said()["worker-0"], re.M)) == 2, "the state of the last commit went along both times"
    status = job.status()
    assert (status["phase"], status["attempt"], status["restarts"]) == ("Succeeded", 1, 1), status


NUMPY = """
    import os, pathlib, time
    import numpy as np, ringmaster as rm
    from ringmaster import elastic
    rm.init()
    print("begun", os.getpid(), rm.rank(), rm.size(), flush=True)
    stop = pathlib.Path(os.environ["STOP"])

    @elastic.run
    def train(state):
        while True:
            total = rm.allreduce(np.array([float(state.step)]), op=rm.Sum, name="g")
            assert total[0] == state.step * rm.size(), (total, state.step)
            state.step += 1
            if state.step % 5 == 0:
                if rm.broadcast_object(stop.exists(), 0):
                    return
                state.commit()
            time.sleep(0.005)

    state = elastic.ObjectState(step=0)
    state.register_reset_callbacks([lambda: print("reset", os.getpid(), rm.rank(), rm.size(), state.step > 0, flush=True)])
    train(state)
    print("done", os.getpid(), rm.rank(), rm.size(), "at", state.step, flush=True)
"""


def test_workers_are_added_and_removed_again_and_again(begin, tmp_path, python_path, processes):
    job = begin(NUMPY, 2, python_path, "--min-np", "1", "--max-np", "5")
    pids = job.wait_size(2)
    for size in (4, 1, 3, 2):
        job.scale(size)
        now = job.wait_size(size)
        stayed = [member for member in now if member in pids]
        assert stayed and all(now[member] == pids[member] for member in stayed), (pids, now)
        gone = [pid for member, pid in pids.items() if member not in now]
        job.wait_for(lambda: not any(pid in processes() for pid in gone), what="the end of who was removed")  # noqa: B023
        pids = now
    assert len(job.finish(tmp_path / "stop")) == 2
    status = job.status()
    assert (status["phase"], status["attempt"], status["restarts"]) == ("Succeeded", 1, 0), status


def test_a_pod_that_is_lost_is_replaced_while_the_others_stay(begin, tmp_path, python_path):
    job = begin(NUMPY, 3, python_path, "--min-np", "1", "--max-np", "4")
    before = job.wait_size(3)
    state = json.loads((job.dir / "pods/worker-1/state.json").read_text())
    os.kill(state["launcher"]["pid"], signal.SIGKILL)
    job.wait_for(lambda: job.said()["worker-1"].count("begun") == 2, what="the process of the new pod")
    after = job.wait_size(3)
    assert (after["worker-0"], after["worker-2"]) == (before["worker-0"], before["worker-2"]) and after["worker-1"] != before["worker-1"]
    assert len(job.finish(tmp_path / "stop")) == 3
    status = job.status()
    assert (status["phase"], status["attempt"], status["restarts"]) == ("Succeeded", 1, 1), status


def test_a_program_that_does_not_listen_is_started_again(begin, tmp_path, python_path):
    script = """
        import os, pathlib, time, ringmaster as rm
        rm.init()
        print("begun", os.getpid(), rm.rank(), rm.size(), flush=True)
        while not rm.broadcast_object(pathlib.Path(os.environ["STOP"]).exists(), 0):
            time.sleep(0.02)
        print("done", os.getpid(), rm.rank(), rm.size(), "well", flush=True)
    """
    job = begin(script, 2, python_path, "--min-np", "1", "--max-np", "4", "--grace", "1s")
    before = job.wait_size(2)
    job.scale(3)
    after = job.wait_size(3)
    assert not set(before.values()) & set(after.values()), (before, after)
    assert job.finish(tmp_path / "stop") == ["well"] * 3
    assert job.status()["attempt"] == 2


def test_a_number_out_of_bounds_is_refused_in_words(begin, tmp_path, python_path, ringmaster):
    job = begin(NUMPY, 2, python_path, "--min-np", "2", "--max-np", "4")
    job.wait_size(2)
    for workers, words in (("9", "9 workers are more than spec.elasticPolicy.maxReplicas, 4"), ("1", "less than spec.elasticPolicy.minReplicas, 2"),
                           ("many", 'found "many", expected a number of workers')):
        done = ringmaster("scale", "--job-dir", job.dir, workers)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    job.finish(tmp_path / "stop")
    done = ringmaster("scale", "--job-dir", job.dir, "3")
    assert done.returncode == 3 and "no runner is at work" in done.stderr, done.stderr
