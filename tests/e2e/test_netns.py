# SPDX-License-Identifier: BSD-2-Clause
"""Two network namespaces of one machine: their processes cannot look each other's sockets up, and stay on TCP."""
import os
import shutil
import subprocess

import pytest

import harness
import hosts
import shell

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def apart():
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root, and ip")
    with hosts.Hosts(2, "none", 1500, pin=False) as pair:
        e = harness.Env("both", pair)
        try:
            yield e
        finally:
            e.close()


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_namespaces_stay_on_tcp(apart, family):
    p = shell.Pair(apart, apart.address if family == "v4" else apart.address6)
    for _ in range(5):
        p.turns(40, 2000)
    p.c.sendall(40000)
    assert p.s.recv(40000, shell.WAITALL).ret == 40000
    got = p.carriers()
    assert len(got) == 2
    for f in got.values():
        assert (f["carrier"], f["reason"]) in (("tcp", "not-local"), ("tcp", "no-key")), f
    # of both, wherever xr-stat runs
    for name, end in ("server", p.s), ("client", p.c):
        f = got[name]
        assert (f["tx"]["bytes"]["tcp"], f["rx"]["bytes"]["tcp"]) == (end.tx, end.rx), f


@pytest.mark.parametrize("settings, reason", [
    ({}, "not-local"), ({"XRDMA_RDMA_TRUST": "fabric"}, "not-local"), ({"XRDMA_RDMA": "yes"}, "no-key"),
    ({"XRDMA_RDMA": "yes", "XRDMA_FABRIC": "shm"}, "not-local"),
    ({"XRDMA_RDMA": "yes", "XRDMA_RDMA_TRUST": "fabric"}, "no-verbs")])
def test_the_tools_say_what_the_program_says(apart, settings, reason):
    if reason == "no-verbs" and os.path.exists("/dev/infiniband/rdma_cm"):
        pytest.skip("this kernel has RDMA")
    apart.env.update(XRDMA_RDMA_KEY="/nonexistent", **settings)
    p = shell.Pair(apart, apart.address)
    for _ in range(5):
        p.turns(40, 2000)
    assert {f["reason"] for f in p.carriers().values()} == {reason}
    env = {**os.environ, **apart.env}
    where = "%s:%d" % (apart.address, p.port)
    with apart.on("client"):
        said = subprocess.run([harness.find("xrdma-run", "tools/xrdma-run"), "--check=" + where], env=env, text=True,
                              capture_output=True, check=False)
    assert "would stay on TCP: %s (" % reason in said.stdout, said.stdout
    if not os.path.exists(os.path.join(harness.build_dir(), "tools", "xr-ping")):
        return
    ping = harness.find("tools/xr-ping")
    with apart.on("server"):
        apart.start(None, [ping, "-l"]).line()
    with apart.on("client"):
        said = subprocess.run([ping, apart.address], env=env, text=True, capture_output=True, check=False)
    assert "no: %s (" % reason in said.stdout, said.stdout


def test_one_namespace_is_one_host(apart):
    """Both programs in the second namespace: as anywhere else."""
    server, client = (shell.Shell(apart, "client") for _ in range(2))
    p = shell.Pair(apart, "127.0.0.1", server=server, client=client)
    for _ in range(50):
        p.turns(20, 1000)
        if all(f["carrier"] == "shm" for f in p.carriers().values()):
            return
    raise AssertionError(p.carriers())
