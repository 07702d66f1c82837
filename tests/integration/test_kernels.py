"""The arithmetic of the ring on another processor: the kernels are compiled for aarch64 (their vectors become NEON registers) and give
the same bits under an emulator as here. A job may mix machines, and its result must not depend on which one did the adding."""

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import PATIENCE_S, ROOT

SOURCES = ["tests/programs/kernels.c", "sidecar/ring/reduce.c", "sidecar/ring/reduce_avx2.c", "sidecar/ring/reduce_avx512.c"]
FLAGS = ["-std=gnu17", "-O2", "-D_GNU_SOURCE", "-Ilib", "-I.", "-w"]


def compile_with(command, target):
    subprocess.run([*command, *FLAGS, "-o", target], check=True, cwd=ROOT, timeout=120)
    return target


def variants(output):
    """Lines by variant."""
    found = {}
    for line in output.splitlines():
        if line.startswith("# "):
            current = found.setdefault(line[2:], [])
        else:
            current.append(line)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kernels")
    objects = []
    for source in SOURCES:
        machine = ["-mavx2", "-mfma", "-mf16c"] if "avx2" in source else \
            ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"] if "avx512" in source else []
        objects.append(directory / (source.replace("/", "-") + ".o"))
        compile_with(["gcc", "-c", source, *machine], objects[-1])
    program = compile_with(["gcc", *objects], directory / "kernels")
    return variants(subprocess.run([program], capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout)


def test_every_variant_of_this_processor_gives_the_same_bits(here):
    assert len(here["0"]) > 100
    for lines in here.values():
        assert lines == here["0"]


def test_neon_gives_the_same_bits(here, tmp_path):
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static", "-nostdlib", "-DFREESTANDING",
           "-fno-sanitize=all", "-fno-builtin"]
    headers = pathlib.Path(importlib.util.find_spec("ziglang").origin).parent / "lib/libc/include"
    zig += ["-isystem", headers / "aarch64-linux-musl", "-isystem", headers / "generic-musl"]
    program = compile_with([*zig, *SOURCES], tmp_path / "kernels-aarch64")
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("compiled; qemu-user is not installed")
    ran = subprocess.run([emulator, program], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert variants(ran.stdout) == {"0": here["0"]}
