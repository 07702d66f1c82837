"""TLS between sidecars, and IPv6: the same rounds over other connections."""

import os
import pathlib
import subprocess
import uuid

import pytest

from conftest import BUILD
from group import Group

MEMBERS = ["chief-0", "worker-0", "worker-1"]


@pytest.fixture
def make_group(keep, sidecar_path, launch_path, env, mark):
    commands = dict.fromkeys(MEMBERS, [BUILD / "tests/programs/reducer"])
    return lambda **more: keep(Group(sidecar_path, launch_path, commands, env={**env, "RM_TEST_MARK": mark, **more}))


def works(group):
    """A round in which every member has reduced, or None."""
    rounds = [{line.split()[2] for line in group.out(m).splitlines() if line.startswith("works ")} for m in group.members]
    assert not any("wrong" in group.out(m) for m in group.members)
    return max(set.intersection(*rounds), key=int, default=None)


def test_a_group_with_tls_trains_and_survives(make_group, wait_for):
    group = make_group(RINGMASTER_TLS="true").start()
    wait_for(lambda: works(group) == "1", what="all-reduces over TLS")
    group.sidecars["worker-0"].kill()
    group.sidecars["worker-0"].wait()
    wait_for(lambda: "peer lost: rank 1 (worker-0)" in group.out("worker-1"), what="the loss")
    group.start_sidecar("worker-0")
    wait_for(lambda: works(group) == "2", what="all-reduces over TLS in the second round")


def test_a_sidecar_without_tls_is_refused(make_group, wait_for):
    group = make_group(RINGMASTER_TLS="true")
    group.extra["worker-1"] = {"RINGMASTER_TLS": "false"}
    group.start()
    wait_for(lambda: 'does without TLS, this side wants it' in group.log("chief-0"), what="the refusal")
    wait_for(lambda: "one side wants TLS and the other does not" in group.log("worker-1"), what="the reason")
    assert works(group) is None


@pytest.fixture
def six_network():
    """A network namespace with an IPv6 address for each member on its loopback device."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    space = f"rms-{uuid.uuid4().hex[:6]}"
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        subprocess.run(["ip", "-n", space, "link", "set", "lo", "up"], check=True)
        for i in range(len(MEMBERS)):
            subprocess.run(["ip", "-n", space, "addr", "add", f"fd00:7::{2 + i}/128", "dev", "lo"], check=True)
        yield space
    finally:
        subprocess.run(["ip", "netns", "del", space], check=False)


@pytest.mark.parametrize("tls", ["false", "true"])
def test_a_group_on_ipv6(make_group, wait_for, six_network, tls):
    group = make_group(RINGMASTER_TLS=tls)
    group.hosts = {m: f"fd00:7::{2 + i}" for i, m in enumerate(MEMBERS)}
    group.extra = {m: {"RINGMASTER_COORDINATOR": f"[{group.hosts['chief-0']}]:{group.port}"} for m in MEMBERS}
    group.wraps = {m: ["ip", "netns", "exec", six_network] for m in MEMBERS}
    group.start()
    wait_for(lambda: works(group) == "1", what="all-reduces on IPv6")
    open_on_v4 = [line for pid in [p.pid for p in group.sidecars.values()]
                  for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    assert not open_on_v4, "nothing goes over IPv4"
