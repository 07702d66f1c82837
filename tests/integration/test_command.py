"""Which job a command means, what it says when no cluster answers, completion, horovodrun's places for output."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import PATIENCE_S

SH = "/bin/sh"
CLUSTER_COMMANDS = [["status"], ["status", "x"], ["status", "-w"], ["logs", "x"], ["events", "x"], ["wait", "x"], ["suspend", "x"],
                    ["resume", "x"], ["checkpoint", "save", "x"], ["scale", "x", "2"], ["delete", "x"]]
DEAD = """
apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: c, user: u, namespace: team}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.fixture
def dead(tmp_path):
    """A kubeconfig of a cluster that is not there."""
    path = tmp_path / "dead"
    path.write_text(DEAD)
    return path


# ---- which job ----------------------------------------------------------------------------------------------------------


def test_which_job_is_meant(ringmaster, write_job, tmp_path, dead):
    job = write_job({"Worker": (2, [SH, "-c", "echo rank $RINGMASTER_RANK"])}, name="mnist")
    assert ringmaster("run", "-f", job).returncode == 0
    directory = tmp_path / "ringmaster-jobs" / "mnist"
    assert "Succeeded" in ringmaster("status", "ringmaster-jobs/mnist").stdout
    assert "Succeeded" in ringmaster("status", "./mnist", cwd=directory.parent).stdout
    assert "Succeeded" in ringmaster("status", "mnist", cwd=directory.parent, env_more={"KUBECONFIG": str(dead)}).stdout, "a directory with a job"
    assert "Succeeded" in ringmaster("status", env_more={"RINGMASTER_JOB_DIR": str(directory)}).stdout
    assert ringmaster("logs", "ringmaster-jobs/mnist", "worker-1").stdout == "rank 1\n"
    assert ringmaster("logs", "--job-dir", directory, "--rank", "0").stdout == "rank 0\n"
    assert ringmaster("logs", "--job-dir", directory, "--role", "worker").stdout.count("rank") == 2
    assert "phase: Succeeded\n" in ringmaster("status", "--job-dir", directory, "-o", "yaml").stdout
    assert ringmaster("status", "--job-dir", directory, "-o", "name").stdout == "mnist\n"
    assert ringmaster("status", "--job-dir", directory, "-w").returncode == 0, "a job that is over is shown once"

    for words in (["mnist"], ["mnist", "-n", "team"]):  # no directory here, or a cluster is named
        asked = ringmaster("status", *words, cwd=directory.parent if len(words) > 1 else None, env_more={"KUBECONFIG": str(dead)})
        assert asked.returncode == 3 and "https://127.0.0.1:1" in asked.stderr, asked.stderr
    for words, text in [(["--job-dir", "x", "-n", "team"], "one is a job of this machine"), (["a/b", "--context", "lab"], "is a directory of this machine"),
                        (["one", "two"], '"two" is too much'), (["-A", "one"], "-A lists")]:
        wrong = ringmaster("status", *words)
        assert wrong.returncode == 2 and text in wrong.stderr, wrong.stderr
    for words, text in [(["ringmaster-jobs/mnist", "--since", "5m"], "--since is for jobs of a cluster"), ([], "which job?"),
                        (["x", "--attempt", "2"], "--attempt is for job directories"), (["x", "--previous", "-f"], "--previous and -f")]:
        wrong = ringmaster("logs", *words)
        assert wrong.returncode == 2 and text in wrong.stderr, wrong.stderr


@pytest.mark.parametrize("words", CLUSTER_COMMANDS, ids=" ".join)
def test_no_cluster_is_a_clear_error(ringmaster, tmp_path, dead, words):
    named = ringmaster(*words, "--kubeconfig", dead)
    assert named.returncode == 3 and 'no cluster answers: tried https://127.0.0.1:1 (context "lab" of ' in named.stderr, named.stderr
    assert str(dead) in named.stderr and "--context" in named.stderr and len(named.stderr.splitlines()) == 1
    nothing = ringmaster(*words, env_more={"HOME": str(tmp_path / "nobody")})
    assert nothing.returncode == 3 and "no cluster is configured" in nothing.stderr and "--kubeconfig" in nothing.stderr
    missing = ringmaster(*words, "--kubeconfig", tmp_path / "not-there")
    assert missing.returncode == 3 and "not-there" in missing.stderr
    context = ringmaster(*words, "--kubeconfig", dead, "--context", "prod")
    assert context.returncode == 3 and '"prod"' in context.stderr and "lab" in context.stderr


# ---- submit, as far as no cluster is asked --------------------------------------------------------------------------------


def test_submit_prints_what_run_would_run(ringmaster, tmp_path):
    words = ["submit", "-np", "3", "--image", "train:1", "--name", "mine", "--reset-limit", "2", "--timeline-filename", "t.json", "--dry-run", "-n", "team"]
    shown = ringmaster(*words, "python", "train.py", "--epochs", "3")
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "mine.yaml").write_text(shown.stdout)
    checked = ringmaster("validate", "mine.yaml")
    assert checked.stdout == "mine.yaml: TrainingJob mine is valid: 3 replicas, ring of 3\n", checked.stderr
    assert "namespace: team" in shown.stdout and "name: RINGMASTER_TIMELINE" in shown.stdout and "backoffLimit: 2" in shown.stdout
    again = ringmaster("submit", "-f", "mine.yaml", "--dry-run")
    assert again.stdout == shown.stdout
    first, second = (re.search(r"name: (train-\w{5})\n", ringmaster("submit", "-np", "1", "--image", "i", "--dry-run", "train.py").stdout)[1] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    "arguments,text",
    [
        ([], "what is to be run?"),
        (["--image", "i", "true"], "how many processes?"),
        (["-np", "2", "true"], "which image?"),
        (["-np", "2", "--image", "i"], "what is to be run?"),
        (["-np", "2", "--image", "i", "-H", "gpu1:2", "true"], "the scheduler chooses the nodes"),
        (["-np", "2", "--image", "i", "--output-filename", "d", "true"], "ringmaster logs"),
        (["-np", "2", "--image", "i", "--name", "No", "true"], "--name No"),
        (["-np", "2", "--image", "i", "-e", "A", "true"], "--env: found"),
        (["-np", "2", "--image", "i", "--memory", "lots", "true"], "--memory: found"),
        (["-f", "x.yaml", "--image", "i"], "stand in the manifest"),
        (["-f", "x.yaml", "true"], "stand in the manifest"),
        (["-f", "there.yaml", "-n", "other"], "metadata.namespace: team"),
        (["-np", "2", "--imag", "i", "true"], "--image"),
    ],
)
def test_submit_bad_usage(ringmaster, tmp_path, arguments, text):
    shown = ringmaster("submit", "-np", "1", "--image", "i", "-n", "team", "--dry-run", "true")
    (tmp_path / "there.yaml").write_text(shown.stdout)
    wrong = ringmaster("submit", *arguments)
    assert wrong.returncode == 2 and text in wrong.stderr, wrong.stderr


# ---- horovodrun's places ---------------------------------------------------------------------------------------------------


def test_output_filename(ringmaster, tmp_path):
    ran = ringmaster("run", "-np", "2", "--min-np", "1", "--output-filename", "out", "--verbose", SH, "-c", "echo $RINGMASTER_RANK; echo err >&2")
    assert ran.returncode == 0, ran.stderr
    for rank in range(2):
        assert sorted((tmp_path / f"out/rank.{rank}/stdout").read_text().split()) == [str(rank), "err"]
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "--output-filename" in ringmaster("run", "-np", "1", "--output-filename", blocked / "x", "true").stderr


# ---- completion ------------------------------------------------------------------------------------------------------------


def complete(ringmaster_path, env, cwd, *words):
    script = 'source <("$1" completion bash); shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ringmaster; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "-c", script, "bash", str(ringmaster_path), "ringmaster", *words]
    done = subprocess.run(command, env=env, cwd=cwd, text=True, capture_output=True, timeout=PATIENCE_S)
    assert done.stderr == "", done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "words,there,absent",
    [
        ([""], {"run", "submit", "status", "logs", "help", "completion"}, {"--help"}),
        (["st"], {"status"}, {"run"}),
        (["help", "su"], {"submit", "suspend"}, {"run"}),
        (["status", "--"], {"--watch", "--output", "--namespace", "--help"}, {"--tail", "--default-job-dir"}),
        (["status", "-o", ""], {"text", "json", "yaml", "name"}, set()),
        (["run", "-"], {"-np", "--hosts", "--no-color", "--resume"}, {"--color"}),
        (["run", "-f", "a"], {"a.yaml"}, {"a-dir/x"}),
        (["logs", "--job-dir", "a"], {"a-dir"}, {"a.yaml"}),
        (["completion", ""], {"bash", "zsh", "fish"}, set()),
        (["validate", ""], {"a.yaml"}, set()),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bash_completes(ringmaster_path, env, tmp_path, words, there, absent):
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "a-dir").mkdir()
    found = complete(ringmaster_path, env, tmp_path, *words)
    assert there <= found and not absent & found, found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_option(ringmaster, shell):
    script = ringmaster("completion", shell)
    assert script.returncode == 0
    for command in ("run", "submit", "status", "logs", "wait"):
        for option in re.findall(r"^  (?:-\w, |    )--([a-z-]+)", ringmaster(command, "--help").stdout, re.M):
            assert re.search(rf"(--|-l )(no-)?{option}\b", script.stdout), f"{command} --{option}"
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script.stdout, text=True, capture_output=True).stderr == ""
    assert ringmaster("completion", "csh").returncode == 2


# ---- one file idiom ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["render", "convert"])
def test_one_manifest(ringmaster, write_job, command):
    job = write_job({"Worker": (1, ["true"])}, name="single")
    assert "which manifest?" in ringmaster(command).stderr
    assert "one manifest at a time" in ringmaster(command, job, job).stderr
    assert ringmaster("render", job, "-o", "json").stdout == ringmaster("render", "-f", job, "-o", "json").stdout
    assert json.loads(ringmaster("render", job, "-o", "json").stdout)["kind"] == "List"


def test_an_mpijob_is_told_what_to_do(ringmaster, tmp_path):
    (tmp_path / "mpi.yaml").write_text("apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: x}\nspec: {}\n")
    refused = ringmaster("convert", "-f", "mpi.yaml")
    assert refused.returncode == 2 and refused.stdout == "" and "ringmaster submit -np N" in refused.stderr
