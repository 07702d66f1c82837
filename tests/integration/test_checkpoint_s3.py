"""Checkpoints on S3: a real server behind a proxy that loses, cuts and refuses. What is promised on a directory holds there."""

import json
import os
import re
import signal
import subprocess

import numpy
import pytest
import s3_server
import safetensors.numpy
from checkpoint_images import SHARD, padded, shares, state
from conftest import PATIENCE_S

UID = "0b7c2f6e-bucket"
PLACE = "s3://bucket/some/prefix"
BIG = 17 << 20  # three parts


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = s3_server.Server(tmp_path_factory.mktemp("s3"), PATIENCE_S)
    yield server
    server.close()


@pytest.fixture
def proxy(server):
    """In front of the server, which is emptied after the test."""
    proxy = s3_server.Proxy(server.port)
    yield proxy
    proxy.close()
    subprocess.run(["rm", "-rf", server.bucket / "some", server.bucket / ".sgwtmp"], check=True)


@pytest.fixture
def keys(proxy):
    return {"AWS_ENDPOINT_URL": proxy.url, "AWS_ACCESS_KEY_ID": s3_server.ACCESS, "AWS_SECRET_ACCESS_KEY": s3_server.SECRET, "AWS_REGION": "us-east-1"}


@pytest.fixture
def run(ringmaster, keys):
    def call(*arguments, **more):
        return ringmaster("checkpoint", *arguments, env_more={**keys, **more})

    return call


@pytest.fixture
def images(tmp_path):
    """images(step): of three ranks, the first of them one that goes up in parts."""

    def call(step):
        paths = []
        for rank, content in enumerate([padded({"big": numpy.arange(BIG // 8, dtype="int64") * step}, {"format": "pt"}), *shares(step, 2)]):
            paths.append(tmp_path / f"image-{step}-{rank}")
            paths[-1].write_bytes(content)
        return paths

    return call


@pytest.fixture
def save(checkpoint, keys):
    def call(step, paths, **more):
        return checkpoint("save", PLACE, UID, step, *paths, env_more={**keys, **more}).strip()

    return call


def refused(root_program, keys, step, paths):
    """A save that fails; what it says."""
    done = subprocess.run([root_program, "save", PLACE, UID, str(step), *map(str, paths)], capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, **keys})
    assert done.returncode == 1, done.stdout
    return done.stderr


def steps(run):
    done = run("ls", PLACE, "-o", "json")
    assert done.returncode == 0, done.stderr
    return {item["step"]: item["state"] for item in json.loads(done.stdout)["checkpoints"]}


def objects(server):
    root = server.bucket / "some/prefix" / UID
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_step_is_saved_listed_verified_exported_and_pruned(server, run, save, images, tmp_path, proxy):
    for step in (10, 20, 30, 40):
        assert save(step, images(step)).startswith(f"{PLACE}/{UID}/s0000000000{step}-")
    assert steps(run) == {40: "committed", 30: "committed", 20: "committed", 10: "committed"}
    assert any("partNumber=3" in line for line in proxy.seen), "the big one went up in parts"
    assert run("verify", PLACE).returncode == 0
    found = run("show", PLACE, "20")
    assert found.returncode == 0 and "big" in found.stdout and PLACE in found.stdout
    to = tmp_path / "model.safetensors"
    assert run("export", PLACE, "20", "--to", to).returncode == 0
    loaded, whole = safetensors.numpy.load_file(to), state(20)
    assert all(numpy.array_equal(loaded[name], array) for name, array in whole.items()) and loaded["big"][7] == 140
    assert run("prune", PLACE, "--keep", "1").returncode == 0
    assert steps(run) == {40: "committed", 30: "committed", 20: "committed"}, "what the last two rounds began from stays"
    assert not [name for name in objects(server) if name.startswith("s000000000010")]
    assert server.uploads() == []


FAULTS = [
    ("500", r"^PUT .*partNumber=2"), ("503", r"^POST .*uploads="), ("503", r"^POST .*uploadId="), ("error-200", r"^POST .*uploadId="),
    ("error-200", r"^POST .*uploads="), ("reset", r"^PUT .*COMMIT"), ("reset-body", r"^PUT .*partNumber=1"), ("reset-reply", r"^GET .*list-type"),
    ("lost", r"^PUT .*COMMIT"), ("lost", r"^PUT .*\.claim"), ("lost", r"^POST .*uploadId="), ("lost", r"^PUT .*partNumber=3"), ("lost", r"^PUT .*vote-"),
    ("corrupt", r"^PUT .*partNumber=2"), ("corrupt", r"^PUT .*shard-00001"), ("reset", r"^(HEAD|GET) "), ("500", r"^(PUT|POST|GET|HEAD) "),
]


@pytest.mark.parametrize("what,pattern", FAULTS)
def test_what_may_pass_is_tried_again_and_nothing_is_lost(server, proxy, run, save, images, what, pattern):
    save(10, images(10))
    times = 4 if pattern.startswith("^(") else 2
    fault = proxy.add(what, pattern, times=times, at=3 << 20 if what == "reset-body" else 40)
    save(20, images(20))
    assert fault.done == times if what != "lost" else fault.done >= 1, "it has happened"
    proxy.faults.clear()
    assert steps(run) == {20: "committed", 10: "committed"}
    done = run("verify", PLACE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.uploads() == [], "nothing is left on its way"


def test_a_download_that_breaks_is_made_up_for(proxy, run, save, images):
    save(10, images(10))
    broken = [proxy.add("reset-reply", r"^GET .*shard-00000", times=2, at=1 << 20), proxy.add("503", r"^GET .*shard-00001", times=3),
              proxy.add("500", r"^GET .*MANIFEST")]
    done = run("verify", PLACE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(fault.done == fault.times for fault in broken)


def test_a_save_that_cannot_be_done_leaves_no_upload_and_the_step_before(server, proxy, build, checkpoint, keys, run, save, images):
    save(10, images(10))
    proxy.add("403", r"^PUT .*partNumber=2", times=1000)
    words = refused(build / "tests/programs/checkpoint", keys, 20, images(20))
    assert "403 AccessDenied: by the proxy" in words and "partNumber" not in words
    proxy.faults.clear()
    assert server.uploads() == [], "the upload was aborted"
    assert steps(run) == {10: "committed"}
    save(30, images(30))
    assert steps(run)[30] == "committed"


def test_an_upload_whose_writer_died_is_swept(server, proxy, build, checkpoint, keys, run, save, images):
    save(10, images(10))
    proxy.add("403", r"^PUT .*partNumber=2", times=1000)
    proxy.add("403", r"^DELETE .*uploadId=", times=1000)
    refused(build / "tests/programs/checkpoint", keys, 20, images(20))
    proxy.faults.clear()
    assert server.uploads() != [], "it could not be aborted"
    save(30, images(30))
    save(40, images(40))
    assert run("prune", PLACE, "--keep", "9").returncode == 0
    assert server.uploads() == []


def test_two_that_claim_one_epoch_do_not_both_get_it(server, proxy, build, keys, run, save, images):
    save(10, images(10))
    # Another coordinator's whole save comes between our look and our PUT: what refuses ours is the condition.
    proxy.on_fault = lambda: save(15, images(15), AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.port}")
    hook = proxy.add("hook", r"^PUT .*\.claim")
    words = refused(build / "tests/programs/checkpoint", keys, 20, images(20))
    assert hook.done == 1 and "exists already: somebody else was first" in words
    assert steps(run) == {15: "committed", 10: "committed"}


def test_expired_credentials_are_fetched_anew(proxy, run, save, images, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    role = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_ROLE_ARN": "arn:aws:iam::1:role/trainer", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token)}
    fault = proxy.add("expired", r"^PUT .*partNumber=2", times=1)
    save(10, images(10), **role)
    assert fault.done == 1 and [line for line in proxy.seen if line.startswith("STS")] == ["STS first"] * 2
    assert run("verify", PLACE, **role).returncode == 0

    none = run("ls", PLACE, AWS_ACCESS_KEY_ID="", HOME=str(tmp_path))
    assert none.returncode == 3 and "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in none.stderr
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(f"[other]\naws_access_key_id = x\n[trainer]\naws_access_key_id = {s3_server.ACCESS}\n"
                                               f"aws_secret_access_key={s3_server.SECRET}\n")
    of_file = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    assert run("ls", PLACE, **of_file, AWS_PROFILE="trainer").returncode == 0
    assert "has not both" in run("ls", PLACE, **of_file, AWS_PROFILE="other").stderr
    assert "there is no profile [default]" in run("ls", PLACE, **of_file).stderr
    wrong = run("ls", PLACE, AWS_SECRET_ACCESS_KEY="wrong")
    assert wrong.returncode == 3 and "SignatureDoesNotMatch" in wrong.stderr


def test_damage_on_the_server_is_found(server, run, save, images):
    save(10, images(10))
    image = next((server.bucket / "some/prefix" / UID).glob(f"s*/{SHARD.format(0)}"))
    content = bytearray(image.read_bytes())
    content[9 << 20] ^= 1
    image.write_bytes(content)
    done = run("verify", PLACE)
    assert done.returncode == 1 and re.search(r"shard-00000\S* is damaged in the 4 MiB from byte 8388608 on", done.stdout), done.stdout + done.stderr


def test_a_step_goes_to_a_bucket_and_back(server, run, save, checkpoint, images, tmp_path, proxy):
    checkpoint("save", tmp_path / "volume", UID, 10, *images(10))
    checkpoint("save", tmp_path / "volume", UID, 20, *images(20))
    proxy.add("503", r"^PUT .*shard-00002", times=2)
    done = run("push", tmp_path / "volume", "--to", PLACE)
    assert done.returncode == 0, done.stderr
    assert steps(run) == {20: "committed"}
    again = len(proxy.seen)
    assert "there already" in run("push", tmp_path / "volume", "--to", PLACE).stdout
    assert not [line for line in proxy.seen[again:] if line.startswith("PUT")]
    assert run("pull", PLACE, "20", "--to", tmp_path / "pulled").returncode == 0
    assert run("verify", tmp_path / "pulled").stdout.startswith("step 20: good")
    (name,) = [p.name for p in (tmp_path / "pulled" / UID).iterdir() if p.name.startswith("s0")]
    for part in (tmp_path / "volume" / UID / name).iterdir():
        assert (tmp_path / "pulled" / UID / name / part.name).read_bytes() == part.read_bytes(), part.name
    wrong = [(["push", tmp_path / "volume", "--to", tmp_path / "x"], "'checkpoint pull'"), (["push", tmp_path / "volume"], "where to?"),
             (["pull", PLACE, "--to", PLACE], "'checkpoint push'")]
    for arguments, words in wrong:
        bad = run(*arguments)
        assert bad.returncode == 2 and words in bad.stderr, bad.stderr


TRAINER = """
import os, time
import numpy
import ringmaster as rm
from ringmaster import checkpoint
rm.init()
found = checkpoint.restore()
begin = found.step if found else 0
print("begins at", begin, float(found.tensors["w"][0]) if found else None, flush=True)
for step in range(begin, 6):
    checkpoint.save(step + 1, {"w": numpy.full(1000, step + 1.0, "float32")}, {})
    checkpoint.wait(60)
    if step == 2 and begin == 0:
        print("saved", flush=True)
        time.sleep(600)
"""


def test_a_job_saves_to_a_bucket_and_comes_back_from_it(ringmaster, ringmaster_start, write_job, keys, python_path, wait_for, tmp_path, run, server):
    job = write_job({"Worker": (2, [str(python_path), "-c", TRAINER])}, name="cloudy", checkpoint={"path": PLACE})
    directory = tmp_path / "ringmaster-jobs/cloudy"
    started = ringmaster_start("run", "-f", job, "--plain", env_more=keys)
    wait_for(lambda: "saved" in started.out_path.read_text() + started.err_path.read_text(), what="three steps saved")
    uid = json.loads((directory / "job.json").read_text())["metadata"]["uid"]
    started.send_signal(signal.SIGKILL)
    started.wait(PATIENCE_S)
    wait_for(lambda: steps_of(run, directory).get(3) == "committed", what="step 3 committed")
    subprocess.run(["rm", "-rf", f"/dev/shm/ringmaster-{uid}"], check=True)  # memory is gone with the machine
    done = ringmaster("run", "--resume", "--job-dir", directory, "--plain", env_more=keys)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("begins at 3 3.0") == 2
    assert steps_of(run, directory)[6] == "committed" and (server.bucket / "some/prefix" / uid / "LATEST").exists()


def steps_of(run, where):
    return {item["step"]: item["state"] for item in json.loads(run("ls", where, "-o", "json").stdout)["checkpoints"]}
