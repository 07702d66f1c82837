"""Whatever may die dies while a job trains: it ends well, nothing is trained twice, nothing is left, and nobody pays for what the
infrastructure did. The operator is installed by helm. Times are printed and written to build/cluster-faults.json.

A job is a chief and three workers of trainer.py (numpy), whose last number shows a step that was skipped or trained twice; the
last tests are the demo's program with TensorFlow.
"""

import calendar
import concurrent.futures
import json
import re
import statistics
import time

import pytest
from conftest import ROOT, namespace, wait_until
from faults import Training, leader, operator_process

FIGURES = ROOT / "build" / "cluster-faults.json"
TF = ["python", "examples/digits/train.py", "--epochs", "5", "--width", "32"]


@pytest.fixture(scope="module")
def figures():
    """Seconds from a fault to the first step that every rank has done after it, by fault."""
    rows = []
    yield rows
    table = [{"name": name, "unit": "s", "n": len(values), "p50": round(statistics.median(values), 2), "max": round(max(values), 2)}
             for name in dict.fromkeys(name for name, _ in rows) if (values := [v for n, v in rows if n == name])]
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(table, indent=1) + "\n")
    print("\nfrom the fault until every rank has trained a step again:")
    for row in table:
        print(f"  {row['name']:<44} p50 {row['p50']:>6.2f} s  max {row['max']:>6.2f} s  n {row['n']}")


@pytest.fixture
def training(cluster, kube, installed):
    """Makes jobs that train; removes them and sees that nothing is left."""
    made = []

    def make(name, **options):
        made.append(Training(cluster, kube, name, **options))
        return made[-1].start()

    yield make
    for job in made:
        job.watch.over.set()
        job.remove()


# ---- processes and pods of a job -----------------------------------------------------------------------------------------------


def kill_trainer(job, member):
    job.trainer_of(member).kill()


def kill_sidecar(job, member):
    job.sidecar_of(member).kill()


def delete_pod(job, member):
    job.kube.run("delete", "pod", f"{job.name}-{member}", "--wait=false")


PARTS = [
    ("training process killed", kill_trainer, "worker-1", 1),
    ("chief's training process killed", kill_trainer, "chief-0", 1),
    ("worker's sidecar killed", kill_sidecar, "worker-2", 0),
    ("chief's sidecar killed", kill_sidecar, "chief-0", 0),
    ("worker's pod deleted", delete_pod, "worker-1", 0),
    ("chief's pod deleted", delete_pod, "chief-0", 0),
]


def lose_a_part(cluster, kube, number):
    """The life of one job; seconds until it trained again."""
    _, fault, member, of_user = PARTS[number]
    job = Training(cluster, kube, f"part-{number}").start()
    try:
        job.wait_trained(25)
        committed, since = job.committed(), time.time()
        fault(job, member)
        again = job.wait_trains_again(since)
        job.wait_succeeded()
        job.check(faults_of_user=of_user, restarts=1, since=since, committed=committed)
        return again
    finally:
        job.watch.over.set()
        job.remove()


@pytest.fixture(scope="module")
def parts(cluster, installation):
    """Each job has its own fault; a few of them live side by side, because most of a life is waiting."""
    installation.need()
    with namespace(cluster, "t-parts") as kube, concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield [pool.submit(lose_a_part, cluster, kube, number) for number in range(len(PARTS))]


@pytest.mark.parametrize("number", range(len(PARTS)), ids=[row[0].replace(" ", "-") for row in PARTS])
def test_a_part_of_the_job_dies(parts, figures, number):
    figures.append((PARTS[number][0], parts[number].result()))


def test_a_node_is_lost(cluster, kube, training, figures):
    job = training("node", steps=300)
    job.wait_trained(25)
    lost = kube.pods("node")["worker-1"]["spec"]["nodeName"]
    committed, since = job.committed(), time.time()
    node = cluster.node(int(lost.rsplit("-", 1)[1]))
    node.kill()
    try:
        figures.append(("node lost", job.wait_trains_again(since)))
        assert all(p["spec"]["nodeName"] != lost for p in kube.pods("node").values())
    finally:
        node.up()
        cluster.wait_ready()
    job.wait_succeeded()
    job.check(restarts=1, since=since, committed=committed)


# ---- the operator and the cluster ----------------------------------------------------------------------------------------------


def longest_pause(job, since):
    """Of the slowest rank between two steps after `since`, in seconds."""
    times = {m: [e["time"] for e in job.trace(m) if e["what"] == "step" and e["time"] > since - 1] for m in job.members}
    return max(b - a for ts in times.values() for a, b in zip(ts, ts[1:], strict=False))


def test_the_leading_operator_is_killed(kube, installed, training, figures):
    job = training("leader", steps=400)
    job.wait_trained(25)
    held = leader(kube)
    since = time.time()
    operator_process(held).kill()
    delete_pod(job, "worker-0")  # while nobody leads: it is for the next leader to see
    figures.append(("operator's leader killed, then a pod deleted", job.wait_trains_again(since)))
    job.wait_succeeded()
    job.check(restarts=1)


@pytest.mark.parametrize("seconds", [30])
def test_the_api_server_is_away(cluster, kube, installed, training, figures, seconds):
    job = training("outage", steps=900)
    job.wait_trained(25)
    since = time.time()
    cluster.processes.kill("kube-apiserver")
    try:
        time.sleep(seconds)
    finally:
        cluster.control.up()
    job.wait_succeeded(timeout_s=240)
    figures.append((f"API server away for {seconds} s: longest pause of training", longest_pause(job, since)))
    job.check(restarts=0)


def test_etcd_is_restarted(cluster, kube, installed, training, figures):
    job = training("etcd", steps=300)
    job.wait_trained(25)
    since = time.time()
    cluster.processes.kill("etcd")
    cluster.control.up()
    job.wait_succeeded()
    figures.append(("etcd killed: longest pause of training", longest_pause(job, since)))
    job.check(restarts=0)


# ---- TensorFlow ------------------------------------------------------------------------------------------------------------------


def test_tensorflow_comes_back(cluster, kube, training, figures):
    """A training process of the demo's program is killed; then the node of another rank is lost."""
    job = training("tf", command=TF, every=20)
    wait_until("a checkpoint counts", lambda: job.committed() > 0, 240, 0.2)
    since, committed = time.time(), job.committed()
    kill_trainer(job, "worker-1")
    resumed = wait_until("the ranks go on", lambda: resumed_steps(job)[0:1], 240, 0.2)
    figures.append(("TensorFlow: training process killed", resumed[0][0] - since))
    assert resumed[0][1] >= committed
    lost = kube.pods("tf")["worker-2"]["spec"]["nodeName"]
    committed, since = job.committed(), time.time()
    node = cluster.node(int(lost.rsplit("-", 1)[1]))
    node.kill()
    try:
        wait_until("the next attempt", lambda: kube.status("tf")["attempt"] == 2, 60)
        resumed = wait_until("the ranks go on", lambda: [r for r in resumed_steps(job) if r[0] > since], 240, 0.2)
        figures.append(("TensorFlow: node lost", resumed[0][0] - since))
        assert resumed[0][1] >= committed
    finally:
        node.up()
        cluster.wait_ready()
    status = job.wait_succeeded(timeout_s=300)
    job.watch.stop()
    assert status["restarts"] == 2 and status["restartsCountTowardsMax"] == 1, job.describe()
    weights = {re.search(r"weights ([0-9a-f]{64})", kube.run("logs", f"tf-{m}"))[1] for m in job.members}
    assert len(weights) == 1, "the ranks end with different weights"


def resumed_steps(job):
    """(time, step) of each time that rank 0 said that it goes on; of its present pod."""
    done = job.kube.run("logs", "--timestamps", f"{job.name}-chief-0", check=False)
    found = re.findall(r"^(\S+)Z .*resumed at step (\d+)", done.stdout, re.M)
    return [(calendar.timegm(time.strptime(at[:19], "%Y-%m-%dT%H:%M:%S")) + float(at[19:]), int(step)) for at, step in found]
