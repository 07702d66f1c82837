"""The ringmaster command on a real cluster; kubectl says what is true.

TRAP: the tests run in a directory of their own, where no job directory can be taken for a job's name.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading

import image
import pytest
from conftest import BUILD, ROOT, Operator, job, wait_until

PROGRAM = BUILD / "bin" / "ringmaster"
UNTIL_GO = "trap 'exit 143' TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done"


class Command:
    """ringmaster in one namespace."""

    def __init__(self, cluster, kube, directory):
        self.kube, self.directory = kube, directory
        self.kubeconfig = cluster.control.kubeconfig
        self.env = {"PATH": os.environ["PATH"], "HOME": str(directory), "KUBECONFIG": str(self.kubeconfig)}

    def words(self, arguments):
        words = list(map(str, arguments))
        options_from = 2 if words[0] == "checkpoint" else 1  # its verbs have options, not the command itself
        return [str(PROGRAM), *words[:options_from], "-n", self.kube.namespace, *words[options_from:]]

    def run(self, *arguments, code=0, stdin=None, timeout=100):
        done = subprocess.run(self.words(arguments), env=self.env, cwd=self.directory, text=True, capture_output=True, timeout=timeout, input=stdin)
        for word in ("Sanitizer", "runtime error:"):
            assert word not in done.stderr, done.stderr
        assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def out(self, *arguments):
        return self.run(*arguments).stdout

    def start(self, *arguments):
        return Running(subprocess.Popen(self.words(arguments), env=self.env, cwd=self.directory, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL))


class Running:
    """A command that goes on; what it printed so far is in `lines`."""

    def __init__(self, process):
        self.process, self.lines, self.errors = process, [], []
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in ((process.stdout, self.lines), (process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def end(self, timeout=60):
        code = self.process.wait(timeout)
        for reader in self.readers:
            reader.join(10)
        return code

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.end(10)


class Proxy:
    """Bytes to the API server and back; its connections can be cut and refused."""

    def __init__(self, host, port):
        self.to, self.open, self.pairs = (host, port), True, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.open:
                client.close()
                continue
            server = socket.create_connection(self.to)
            self.pairs.append((client, server))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self, refuse=True):
        self.open = not refuse
        for pair in self.pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs = []

    def close(self):
        self.cut()
        self.listener.close()


@pytest.fixture
def operator(cluster, tmp_path):
    """One that does not give up when the machine is busy: its Lease is not what is tested here."""
    made = Operator(cluster, tmp_path).start("--lease-duration", "40s", "--lease-renew-deadline", "30s", "--lease-retry", "2s")
    yield made
    alive = made.is_alive()
    assert made.stop() == 0 and alive, made.log()[-4000:]


@pytest.fixture
def ringmaster(cluster, kube, tmp_path):
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    return Command(cluster, kube, directory)


def manifest_file(tmp_path, manifest):
    path = tmp_path / f"{manifest['metadata']['name']}.json"
    path.write_text(json.dumps(manifest))
    return path


def go(kube, name, workers):
    for i in range(workers):
        kube.shell(f"{name}-worker-{i}", "touch /tmp/go")


# ---- submit ----------------------------------------------------------------------------------------------------------------


def test_submit_a_manifest_and_wait(kube, operator, ringmaster, tmp_path):
    path = manifest_file(tmp_path, job("sent", command="echo hello; sleep 1"))
    done = ringmaster.run("submit", "-f", path, "--wait")
    assert f"trainingjob/sent created in namespace {kube.namespace}" in done.stdout and "sent: Running" in done.stderr
    assert kube.status("sent")["phase"] == "Succeeded"
    managers = {f["manager"]: f["operation"] for f in kube.get("trainingjob", "sent")["metadata"].get("managedFields", [])} or json.loads(
        kube.run("get", "tj", "sent", "-o", "json", "--show-managed-fields"))["metadata"]["managedFields"][0]
    assert "ringmaster" in str(managers)
    again = ringmaster.run("submit", "-f", path, code=3)
    assert "has ended (Succeeded)" in again.stderr and "ringmaster delete sent" in again.stderr


def test_a_job_that_fails_gives_one(operator, ringmaster, tmp_path):
    failing = job("fails", workers=1, restart="Never", command="echo 'no data' >&2; exit 3")
    done = ringmaster.run("submit", "-f", manifest_file(tmp_path, failing), "--follow", code=1)
    assert "no data" in done.stdout and "Failed" in done.stderr


def test_submit_a_command(kube, operator, ringmaster):
    words = ["submit", "-np", "2", "--image", image.IMAGE, "--name", "typed", "-e", "GREETING=it costs $5", "--cpu", "50m", "--memory", "64Mi",
             "--label", "team=a"]
    command = ["--", "sh", "-c", 'echo "$GREETING by $RINGMASTER_RANK"']
    shown = ringmaster.out(*words, "--dry-run", *command)
    assert kube.get("trainingjob", "typed") is None
    assert "trainingjob.ringmaster.dev/typed" in kube.run("create", "--dry-run=server", "-o", "name", "-f", "-", stdin=shown)
    ringmaster.run(*words, *command)
    stored = kube.get("trainingjob", "typed")
    container = stored["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert stored["spec"]["replicaSpecs"]["Worker"]["replicas"] == 2 and stored["metadata"]["labels"]["team"] == "a"
    assert container["image"] == image.IMAGE and container["resources"]["limits"]["memory"] == "64Mi" and container["resources"]["requests"]["cpu"] == "50m"
    assert container["env"] == [{"name": "GREETING", "value": "it costs $$5"}]


def test_what_the_cluster_refuses(kube, ringmaster, tmp_path):
    wrong = job("wrong")
    wrong["spec"]["runPolcy"] = {}
    done = ringmaster.run("submit", "-f", manifest_file(tmp_path, wrong), code=2)
    assert 'runPolcy: unknown field; did you mean "runPolicy"?' in done.stderr and kube.get("trainingjob", "wrong") is None
    kube.apply(job("owned", runPolicy={"backoffLimit": 1}))
    owned = job("owned", runPolicy={"backoffLimit": 2})
    conflict = ringmaster.run("submit", "-f", manifest_file(tmp_path, owned), code=3)
    assert "--force-conflicts" in conflict.stderr and "backoffLimit" in conflict.stderr
    assert "changed" in ringmaster.out("submit", "-f", manifest_file(tmp_path, owned), "--force-conflicts")
    assert "unchanged" in ringmaster.out("submit", "-f", manifest_file(tmp_path, owned))
    assert kube.get("trainingjob", "owned")["spec"]["runPolicy"]["backoffLimit"] == 2


# ---- status ----------------------------------------------------------------------------------------------------------------


def test_status_says_what_kubectl_says(kube, operator, ringmaster):
    assert "no TrainingJob" in ringmaster.run("status").stderr
    kube.apply(job("one", workers=2, command=UNTIL_GO))
    kube.apply(job("two", workers=1, command="exit 7", restart="Never"))
    kube.wait_phase("one", "Running")
    kube.wait_phase("two", "Failed")
    table = ringmaster.out("status").splitlines()
    wide = kube.run("get", "tj").splitlines()
    assert [line.split()[:4] for line in table[1:]] == [line.split()[:4] for line in wide[1:]]
    assert ringmaster.out("status", "-o", "name").split() == ["one", "two"]
    everywhere = json.loads(ringmaster.out("status", "-A", "-o", "json"))["items"]
    assert {(i["metadata"]["namespace"], i["metadata"]["name"]) for i in everywhere} >= {(kube.namespace, "one"), (kube.namespace, "two")}

    one = ringmaster.out("status", "one")
    assert one.splitlines()[0].startswith("one  Running  attempt 1 round 0")
    for member, pod in kube.pods("one").items():
        row = next(line for line in one.splitlines() if f" {member} " in line)
        assert "running" in row and pod["spec"]["nodeName"] in row and pod["metadata"]["name"] in row
    for condition in kube.status("one")["conditions"]:
        assert re.search(rf"^  {condition['type']} +{condition['status']} .* {condition['reason']} ", one, re.M), one
    assert "TrainingJobRunning" in one

    two = ringmaster.out("status", "two")
    assert "exit code 7" in two and kube.status("two")["failures"][-1]["node"] in two
    assert json.loads(ringmaster.out("status", "two", "-o", "json")) == kube.status("two")
    assert "phase: Failed\n" in ringmaster.out("status", "two", "-o", "yaml")
    go(kube, "one", 2)


def test_status_follows_to_the_end(kube, operator, ringmaster):
    kube.apply(job("seen", workers=1, command=UNTIL_GO))
    watch = ringmaster.start("status", "seen", "-w")
    listing = ringmaster.start("status", "-w")
    wait_until("it is shown as running", lambda: any("Running" in line for line in watch.lines))
    go(kube, "seen", 1)
    assert watch.end() == 0 and "Succeeded" in watch.lines[-1]
    wait_until("the list shows its end", lambda: any("Succeeded" in line for line in listing.lines))
    assert listing.interrupt() == 130
    kube.apply(job("bad", workers=1, restart="Never", command="sleep 1; exit 1"))
    assert ringmaster.run("status", "bad", "-w", code=1).stdout.splitlines()[-1].startswith("bad: Failed")


def test_status_is_a_picture_on_a_terminal(kube, operator, ringmaster):
    kube.apply(job("drawn", workers=2, command="sleep 3"))
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    process = subprocess.Popen(ringmaster.words(["status", "drawn", "-w"]), env={**ringmaster.env, "TERM": "xterm"}, cwd=ringmaster.directory,
                               stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    output = b""
    with contextlib.suppress(OSError):
        while piece := os.read(parent, 65536):
            output += piece
    os.close(parent)
    text = output.decode(errors="replace")
    assert process.wait(30) == 0, text
    last = re.sub(r"\033\[[0-9;?]*[A-Za-z]", "", text.rpartition("\033[J")[2])
    assert "drawn  Succeeded" in last and "worker-1" in last and "Conditions:" in last and "TrainingJobSucceeded" in last, text
    assert text.count("\033[J") > 2 and all(len(line) < 90 for line in last.split("\r\n")), "it is drawn over, and fits"


def test_a_pod_that_cannot_start_says_why(kube, operator, ringmaster):
    kube.apply(job("stuck", workers=1, container={"image": "localhost/ringmaster/none:1"}))
    wait_until("the reason", lambda: re.search(r"worker-0 .*(ErrImagePull|ImagePullBackOff|ErrImageNeverPull)", ringmaster.out("status", "stuck")))


# ---- logs ------------------------------------------------------------------------------------------------------------------


def test_logs_of_all_ranks_in_order(kube, operator, ringmaster):
    command = "for i in 1 2 3 4 5; do echo step $i of $RINGMASTER_INDEX; sleep 0.3; done; echo -n 'no newline'"
    kube.apply(job("talk", workers=3, command=command, successPolicy="AllWorkers", runPolicy={"cleanPodPolicy": "None"}))
    kube.wait_phase("talk", "Succeeded")
    lines = ringmaster.out("logs", "talk").splitlines()
    assert len(lines) == 18
    for i in range(3):
        own = [line.split("] ", 1)[1] for line in lines if line.startswith(f"[worker-{i}]")]
        assert own == kube.run("logs", f"talk-worker-{i}").splitlines()
    stamps = [line.split(" ")[0] for line in ringmaster.out("logs", "talk", "--timestamps").splitlines()]
    assert stamps == sorted(stamps) and len(stamps) == 18
    assert ringmaster.out("logs", "talk", "--rank", "1").splitlines() == kube.run("logs", "talk-worker-1").splitlines()
    assert len(ringmaster.out("logs", "talk", "--role", "worker", "--tail", "2").splitlines()) == 6
    assert ringmaster.run("logs", "talk", "worker-7", code=2).stderr.count("did you mean") == 1
    assert ringmaster.out("logs", "talk", "worker-2", "--tail", "1") == "no newline\n"
    assert "previous terminated container" in ringmaster.run("logs", "talk", "worker-0", "--previous", code=3).stderr


def test_logs_follow_new_pods(kube, operator, ringmaster):
    command = "echo attempt $RINGMASTER_ATTEMPT of $RINGMASTER_INDEX; " + UNTIL_GO + "; echo done $RINGMASTER_INDEX"
    following = None
    kube.apply(job("follow", workers=2, command=command))
    kube.wait_phase("follow", "Running")
    following = ringmaster.start("logs", "follow", "-f")
    wait_until("both are heard", lambda: len(following.lines) == 2)
    kube.run("delete", "pod", "follow-worker-1", "--wait=false")
    wait_until("the new pods are heard", lambda: "[worker-1] attempt 2 of 1" in following.lines, 60)
    kube.wait_phase("follow", "Running")
    go(kube, "follow", 2)
    assert following.end() == 0, following.errors
    assert sorted(following.lines) == sorted(
        [f"[worker-{i}] attempt {a} of {i}" for i in range(2) for a in (1, 2)] + [f"[worker-{i}] done {i}" for i in range(2)])


def test_no_line_is_lost_when_the_connection_is(kube, operator, ringmaster, tmp_path):
    text = ringmaster.kubeconfig.read_text()
    host, port = re.search(r"https://([\d.]+):(\d+)", text).groups()
    proxy = Proxy(host, int(port))
    (tmp_path / "proxied").write_text(text.replace(f"https://{host}:{port}", f"https://127.0.0.1:{proxy.port}"))
    command = "i=0; while [ ! -e /tmp/go ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo end $i"
    kube.apply(job("cut", workers=2, command=command, successPolicy="AllWorkers", runPolicy={"cleanPodPolicy": "None"}))
    kube.wait_phase("cut", "Running")
    following = ringmaster.start("logs", "cut", "-f", "--kubeconfig", tmp_path / "proxied")
    for refuse in (False, True, False):
        heard = len(following.lines)
        wait_until("it is heard", lambda heard=heard: len(following.lines) > heard + 100, 60)
        proxy.cut(refuse)
        if refuse:
            wait_until("it says so", lambda: any("trying again" in line for line in following.errors), 60)
            proxy.open = True
    heard = len(following.lines)
    wait_until("it goes on", lambda: len(following.lines) > heard + 100, 60)
    go(kube, "cut", 2)
    assert following.end() == 0, following.errors
    proxy.close()
    for i in range(2):
        own = [line.split("] ", 1)[1] for line in following.lines if line.startswith(f"[worker-{i}]")]
        assert own == kube.run("logs", f"cut-worker-{i}").splitlines()


# ---- the rest --------------------------------------------------------------------------------------------------------------


def test_a_life_by_command(kube, operator, ringmaster):
    kube.apply(job("life", workers=2, command=UNTIL_GO, elasticPolicy={"minReplicas": 1, "maxReplicas": 3}))
    assert ringmaster.run("wait", "life", "--for", "running", "--timeout", "60s").returncode == 0
    assert "is not Succeeded" not in ringmaster.run("wait", "life", "--timeout", "1s", code=4).stdout
    events = ringmaster.out("events", "life")
    for event in kube.events("life"):
        assert event["reason"] in events
    assert "life-worker-0: " in events and "Scheduled" in events and "Scheduled" not in ringmaster.out("events", "life", "--no-pods")

    assert ringmaster.out("suspend", "life", "--wait", "--timeout", "60s") == "trainingjob/life suspended\n"
    assert kube.status("life")["phase"] == "Suspended" and not kube.pods("life")
    assert "already" in ringmaster.out("suspend", "life")
    assert ringmaster.out("resume", "life", "--wait", "--timeout", "60s") == "trainingjob/life resumed\n"
    assert kube.status("life")["attempt"] == 2

    kube.wait_phase("life", "Running")
    assert ringmaster.out("checkpoint", "save", "life") == "trainingjob/life: checkpoint asked for\n"
    asked = kube.get("trainingjob", "life")["metadata"]["annotations"]["ringmaster.dev/checkpoint-now"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", asked)

    assert ringmaster.out("scale", "life", "3") == "trainingjob/life scaled from 2 to 3 workers\n"
    assert kube.get("trainingjob", "life")["spec"]["replicaSpecs"]["Worker"]["replicas"] == 3
    assert "maxReplicas" in ringmaster.run("scale", "life", "9", code=2).stderr

    gone = ringmaster.start("wait", "life", "--for", "deleted")
    assert ringmaster.out("delete", "life", "--wait", "--timeout", "60s") == "trainingjob/life deleted\n"
    assert gone.end() == 0 and kube.get("trainingjob", "life") is None
    assert 'no job "life" in namespace' in ringmaster.run("delete", "life", code=3).stderr
    assert "TrainingJobCreated" in ringmaster.out("events", "life"), "its events outlive it"
    assert 'no job "nobody" in namespace' in ringmaster.run("events", "nobody", code=3).stderr
    for command in ("status", "logs", "wait", "suspend", "scale"):
        missing = ringmaster.run(command, "life", *(["1"] if command == "scale" else []), code=3)
        assert 'no job "life" in namespace' in missing.stderr, command


def test_what_cannot_come_any_more_is_not_waited_for(kube, operator, ringmaster):
    kube.apply(job("over", workers=1, command="true"))
    assert ringmaster.run("wait", "over", "--for", "finished", "--timeout", "60s").returncode == 0
    assert "will not be failed any more: Succeeded" in ringmaster.run("wait", "over", "--for", "failed", code=1).stderr
    assert "has ended (Succeeded)" in ringmaster.run("suspend", "over", code=3).stderr


def test_a_cluster_that_does_not_answer_is_named(ringmaster, tmp_path):
    text = re.sub(r"https://[^\"]*", "https://127.0.0.1:1", ringmaster.kubeconfig.read_text())
    (tmp_path / "dead").write_text(text)
    for command in (["status"], ["status", "x"], ["status", "-w"], ["logs", "x"], ["wait", "x"], ["delete", "x"], ["events", "x"]):
        done = ringmaster.run(*command, "--kubeconfig", tmp_path / "dead", code=3)
        assert "https://127.0.0.1:1" in done.stderr and "no cluster answers" in done.stderr, (command, done.stderr)
    nowhere = ringmaster.run("status", "--context", "nobody", code=3)
    assert '"nobody"' in nowhere.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is what is tested")
def test_completion_knows_the_jobs(cluster, kube, ringmaster):
    kube.apply(job("complete-me", suspend=True))
    script = 'source <("$1" completion bash); COMP_WORDS=(ringmaster logs c); COMP_CWORD=2; PATH="$2:$PATH"; _ringmaster; echo "${COMPREPLY[@]}"'
    text = ringmaster.kubeconfig.read_text()
    changed = text.replace("{cluster: test, user: admin}", f"{{cluster: test, user: admin, namespace: {kube.namespace}}}")
    path = ringmaster.directory / "config"
    path.write_text(changed)
    done = subprocess.run(["bash", "-c", script, "bash", str(PROGRAM), str(PROGRAM.parent)], env={**ringmaster.env, "KUBECONFIG": str(path)}, text=True,
                          capture_output=True, timeout=30, cwd=ringmaster.directory)
    assert done.stdout.split() == ["complete-me"], (done, changed)


@pytest.mark.parametrize("path", sorted((ROOT / "tests/unit/job/convert").glob("*.yaml")), ids=lambda p: p.stem)
def test_what_is_converted_is_accepted(kube, ringmaster, path):
    if "kubeflow.org/v1" not in path.read_text():
        pytest.fail("not one of Kubeflow")
    converted = ringmaster.run("convert", "-f", path, code=None)
    assert converted.returncode in (0, 2), converted.stderr
    if converted.returncode == 0:
        text = re.sub(r"\n  namespace: \S+", "", converted.stdout)
        assert "trainingjob" in kube.run("create", "--dry-run=server", "-o", "name", "-f", "-", stdin=text)
