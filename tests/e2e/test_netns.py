# SPDX-License-Identifier: BSD-2-Clause
"""Two network namespaces of one machine: their processes cannot look each other's sockets up, and stay on TCP."""
import os
import shutil

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


def test_one_namespace_is_one_host(apart):
    """Both programs in the second namespace: as anywhere else."""
    server, client = (shell.Shell(apart, "client") for _ in range(2))
    p = shell.Pair(apart, "127.0.0.1", server=server, client=client)
    for _ in range(50):
        p.turns(20, 1000)
        if all(f["carrier"] == "shm" for f in p.carriers().values()):
            return
    raise AssertionError(p.carriers())
