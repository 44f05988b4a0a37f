# SPDX-License-Identifier: BSD-2-Clause
"""Connections to another host: why they stay on TCP when something that RDMA needs is missing."""
import json
import os
import subprocess

import pytest

import harness
import hosts

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]

MODULE = os.path.dirname(harness.find(".libs/libxrdma_preload.so"))
SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
c = s.accept()[0]
while d := c.recv(1000):
    c.sendall(d)
"""
CLIENT = """
import socket, sys
c = socket.create_connection((sys.argv[1], 7000))
for _ in range(50):
    c.sendall(b"x" * 1000)
    n = 0
    while n < 1000:
        n += len(c.recv(1000 - n))
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", name="two")
def make_two():
    with hosts.Hosts(2, "rxe") as pair:
        yield pair


# A place of its own to look at, without a device: other tests of this kernel have theirs.
BLIND = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/infiniband && exec "$@"', "-"]


def reasons(two, tmp_path, wrap=(), **settings):
    """Those that xr-stat shows for the connecting and the accepting end."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("XRDMA_")}
    env.update(XRDMA_STATS_DIR=str(tmp_path), XRDMA_MODULE_DIR=MODULE, LC_ALL="C", **settings)
    run = [*wrap, harness.find("tools/xrdma-run"), "--preload=" + MODULE + "/libxrdma_preload.so", "/usr/bin/python3", "-c"]
    with two[0].inside():
        server = subprocess.Popen([*run, SERVER, two[0].address], env=env, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    with two[1].inside():
        client = subprocess.Popen([*run, CLIENT, two[0].address], env=env, text=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == "done\n"
        p = subprocess.run([harness.find("tools/xr-stat"), "-aj"], env=env, check=True, capture_output=True, text=True)
        flows = [f for f in json.loads(p.stdout)["flows"] if f["state"] == "ESTAB"]
        assert all(f["carrier"] == "tcp" for f in flows)
        return {f["role"]: f["reason"] for f in flows}
    finally:
        client.communicate("")
        server.wait(10)
        server.stdout.close()


def both(reason):
    return {"client": reason, "server": reason}


def test_off(two, tmp_path):
    assert reasons(two, tmp_path) == both("not-local")


@pytest.mark.parametrize("case", ["none", "open", "torn"])
def test_no_key(two, tmp_path, case):
    """There is none, others may read it, it is not one."""
    key = tmp_path / "key"
    if case != "none":
        subprocess.run([harness.find("tools/xrdma-run"), "--make-key=%s" % key], check=True)
    if case == "open":
        key.chmod(0o644)
    if case == "torn":
        key.write_text(key.read_text()[:-10])
    assert reasons(two, tmp_path, XRDMA_RDMA="yes", XRDMA_RDMA_KEY=str(key)) == both("no-key")


def test_no_rdma_in_the_kernel(two, tmp_path):
    assert reasons(two, tmp_path, wrap=BLIND, XRDMA_RDMA="yes", XRDMA_RDMA_TRUST="fabric") == both("no-verbs")
