"""Tensors in GPU memory, on a machine that need not have a GPU: the kernels as nvcc has compiled them, and whole jobs on a libcuda.so.1
that keeps device memory on the host (tests/gpu). What only a GPU can show is in docs/gpus.md."""

import os
import pathlib
import subprocess

import pytest

from conftest import BUILD, ROOT

REDUCER = BUILD / "tests/programs/gpu_reducer"


@pytest.fixture
def cuobjdump():
    found = list((ROOT / "build/venv-cuda").glob("lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump"))
    if not found:
        pytest.fail("build/venv-cuda has no cuobjdump: run make deps")
    return str(found[0])


@pytest.fixture
def run(ringmaster, job_dir):
    """run(ranks, library_dir, arguments...) → (result, {rank: output})."""

    def call(ranks, library_dir, *arguments, **env):
        env = {"LD_LIBRARY_PATH": str(library_dir), **env}
        command = ["run", "-np", ranks, "--no-logs", "--job-dir", job_dir, "--", "env", *(f"{k}={v}" for k, v in env.items()), REDUCER, *arguments]
        result = ringmaster(*command, timeout_s=280)
        logs = {r: "".join(p.read_text() for p in sorted((job_dir / f"logs/worker-{r}").glob("[0-9]*.log"))) for r in range(ranks)}
        return result, logs

    return call


def embedded():
    """The fatbin, out of the library that carries it."""
    library = (ROOT / "build/client/lib/libringmaster.so").read_bytes()
    fatbin = (ROOT / "build/gpu/kernels.fatbin").read_bytes()
    assert fatbin in library, "the library does not carry the kernels"
    return ROOT / "build/gpu/kernels.fatbin"


def test_kernels_are_there_for_every_architecture_and_those_to_come(cuobjdump):
    listed = subprocess.run([cuobjdump, "--list-elf", "--list-ptx", embedded()], capture_output=True, text=True, check=True).stdout
    elf = {line.split(".")[-2] for line in listed.splitlines() if line.startswith("ELF")}
    ptx = {line.split(".")[-2] for line in listed.splitlines() if line.startswith("PTX")}
    assert elf == {"sm_80", "sm_90", "sm_100"}, listed
    assert ptx == {"sm_80"}, listed


def test_every_kernel_that_is_asked_for_is_there_and_uses_no_stack(cuobjdump):
    usage = subprocess.run([cuobjdump, "-res-usage", embedded()], capture_output=True, text=True, check=True)
    text = usage.stdout + usage.stderr
    for kernel in ("ringmaster_copy_many", "ringmaster_scale"):
        rows = [after for before, after in zip(text.splitlines(), text.splitlines()[1:]) if before.strip().startswith(f"Function {kernel}:")]
        assert len(rows) == 3, text  # one for each architecture
        assert all(" STACK:0 " in row and " LOCAL:0 " in row for row in rows), rows


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_job_reduces_tensors_in_gpu_memory(run, ranks):
    result, logs = run(ranks, BUILD / "tests/gpu")
    assert result.returncode == 0, result.stdout + result.stderr + str(logs)
    assert [logs[rank].splitlines()[-1] for rank in range(ranks)] == [f"right {rank}, 0 left" for rank in range(ranks)]


def test_a_job_comes_back_after_a_rank_was_killed_with_copies_in_flight(run):
    result, logs = run(3, BUILD / "tests/gpu", "--die", "1")
    assert result.returncode == 0, result.stdout + result.stderr + str(logs)
    for rank in range(3):
        assert logs[rank].splitlines()[-1] == f"right {rank}, 0 left", logs[rank]
    assert "worker-1 was ended by signal 9" in result.stdout + result.stderr


def garbage(directory: pathlib.Path):
    directory.mkdir()
    (directory / "libcuda.so.1").write_bytes(b"no library\n" * 100)
    return directory


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("no library", {}, ["libcuda.so.1 cannot be loaded", "resources.limits nvidia.com/gpu"]),
        ("old", {"FAKE_CUDA_VERSION": "11080"}, ["too old", "it knows CUDA 11.8, needed is 12.0"]),
        ("no device", {"FAKE_CUDA_DEVICES": "0"}, ["cuInit", "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"]),
        ("host memory", {}, ['"x": tensor 0 is said to lie in GPU memory']),
    ],
)
def test_what_is_missing_is_said(run, tmp_path, name, env, words):
    directory = garbage(tmp_path / "garbage") if name == "no library" else BUILD / "tests/gpu"
    result, logs = run(2, directory, "--ask", **env)
    assert result.returncode == 0, result.stdout + result.stderr + str(logs)
    for word in words:
        assert word in logs[0], logs[0]


def test_the_library_needs_nothing_of_nvidias_to_be_loaded():
    needed = subprocess.run(["readelf", "-d", ROOT / "build/client/lib/libringmaster.so"], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed and "nccl" not in needed, needed
    assert os.path.getsize(ROOT / "build/gpu/kernels.fatbin") < 200_000
