# SPDX-License-Identifier: BSD-2-Clause
"""xr-ping between two hosts: the way to RDMA step by step, with the reason of the step that fails."""
import contextlib
import json
import os
import subprocess

import pytest

import harness
import hosts

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]

MODULE = os.path.dirname(harness.find(".libs/libxrdma-verbs.so"))
PING = harness.find("tools/xr-ping")
WANTED = {"XRDMA_RDMA": "yes", "XRDMA_RDMA_SOFTWARE": "yes", "XRDMA_RDMA_COMPARE": "no"}


@pytest.fixture(scope="module", name="keys")
def make_keys(tmp_path_factory):
    keys = [str(tmp_path_factory.mktemp("keys") / n) for n in "ab"]
    for k in keys:
        subprocess.run([harness.find("tools/xrdma-run"), "--make-key=" + k], check=True)
    return keys


def environment(key, **extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith("XRDMA_")}
    return dict(env, XRDMA_MODULE_DIR=MODULE, XRDMA_RDMA_KEY=key, LC_ALL="C", **extra)


@contextlib.contextmanager
def listening(host, key, **env):
    with host.inside():
        p = subprocess.Popen([PING, "-l"], env=environment(key, **env), text=True, stdout=subprocess.PIPE)
    try:
        assert p.stdout.readline().startswith("xr-ping listens")
        yield
    finally:
        p.terminate()
        status = p.wait(10)
        p.stdout.close()
    assert status == 0


def ping(host, key, address, *args, **env):
    with host.inside():
        p = subprocess.run([PING, "-j", "-c", "10", *args, address], env=environment(key, **env), text=True, timeout=60,
                           capture_output=True, check=False)
    return p.returncode, json.loads(p.stdout), p.stderr


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_rdma(keys, mtu):
    with hosts.Hosts(2, "rxe", mtu) as (a, b), listening(b, keys[0], **WANTED):
        for address in (b.address, b.address6):
            status, o, _ = ping(a, keys[0], address, **WANTED)
            assert (status, o["fabric"], o["upgrade"], o["same_host"]) == (0, "rdma", True, False), o
            d = o["device"]
            assert d["software"] is True and d["up"] is True and d["qp"] and d["peer_qp"]
            assert d["address"] == (a.address6 if ":" in address else a.address)
            assert d["mtu"] == (1024 if mtu == 1500 else 4096)
            assert [(e["op"], e["bytes"], e["lost"], e["wrong"]) for e in o["round_trips"]] == [
                (op, n, 0, 0) for op in ("send", "read", "write") for n in (64, 4096, 65536)]


def test_reasons(keys):
    with hosts.Hosts(2, "rxe") as (a, b):
        with listening(b, keys[0], **WANTED):
            for env, reason in (({"XRDMA_RDMA": "yes"}, "software-device"), ({}, "not-local")):
                status, o, _ = ping(a, keys[0], b.address, "-s64", **env)
                assert (status, o["reason"]) == (1, reason)
                assert all(e["sent"] == 10 for e in o["round_trips"]), "measured all the same"
            for key, reason in ((keys[1], "proof-failed"), ("/none", "no-key")):
                status, o, _ = ping(a, key, b.address, **WANTED)
                assert (status, o["reason"], o["meeting_ms"]) == (1, reason, None)
            status, o, _ = ping(a, keys[0], b.address, XRDMA_RDMA_TRUST="fabric", **WANTED)
            assert (status, o["reason"]) == (1, "proof-failed")
            status, o, _ = ping(a, keys[0], b.address, XRDMA_RDMA_DEVICE="mlx5_0", **WANTED)
            assert (status, o["reason"]) == (1, "no-verbs")
        with listening(b, "/none", XRDMA_RDMA_TRUST="fabric", **WANTED):
            status, o, _ = ping(a, "/none", b.address, XRDMA_RDMA_TRUST="fabric", **WANTED)
            assert (status, o["reason"]) == (0, "none")
        with listening(b, keys[0]):
            status, o, _ = ping(a, keys[0], b.address, **WANTED)
            assert (status, o["reason"]) == (1, "not-local"), "the settings of the other end"


@pytest.mark.parametrize("device,reason", [("siw", "iwarp"), ("none", "no-verbs")])
def test_no_rdma(keys, device, reason):
    with hosts.Hosts(2, device) as (a, b), listening(b, keys[0], **WANTED):
        status, o, _ = ping(a, keys[0], b.address, **WANTED)
        assert (status, o["reason"]) == (1, reason)
