# SPDX-License-Identifier: BSD-2-Clause
"""A way over RDMA that is slower than TCP between the same hosts is left to TCP, before and after a connection has moved."""
import os

import pytest

import harness
import hosts
import shell
from test_ping import WANTED, listening, make_keys, ping  # noqa: F401

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]
COMPARED = {**WANTED, "XRDMA_RDMA_COMPARE": "yes"}


@pytest.fixture(scope="module", name="two")
def make_two():
    with hosts.Hosts(2, "rxe") as pair:
        # one band for all, and one that is late for what rxe sends
        pair[0].run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "prio", "bands", "3", "priomap", *["0"] * 16)
        pair[0].run("tc", "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32",
                    "match", "ip", "protocol", "17", "0xff", "match", "ip", "dport", "4791", "0xffff", "flowid", "1:2")
        yield pair


def late(host, delay):
    """What RDMA sends, and nothing else."""
    host.run("tc", "qdisc", "replace", "dev", "eth0", "parent", "1:2", "handle", "20:", "netem", "limit", "100000", "delay", delay)


@pytest.fixture
def env(two, monkeypatch):
    monkeypatch.setattr(harness, "BRIDGE", True)
    e = harness.Env("both", two)
    e.env["XRDMA_RDMA_COMPARE"] = "yes"
    try:
        yield e
    finally:
        e.close()


def reasons(p, c=None):
    return {f["reason"] for f in p.carriers(c).values()}


def test_never_moved(env, two):
    """None of its round trips is short enough; the next connection to that host does not even try."""
    late(two[0], "25ms")
    p = shell.Pair(env)
    harness.until(lambda: (p.turns(20, 1000), reasons(p) == {"slower-path"})[1], 10, lambda: str(reasons(p)))
    c, s = p.connect()
    harness.until(lambda: (p.turns(20, 1000, c, s), reasons(p, c) == {"slower-path"})[1], 2, lambda: str(reasons(p, c)))
    for sh in (p.server, p.client):
        assert env.counters(sh.pid)[1]["slower-path"] == 2
    assert {f["upgrades"] for f in env.flows()} == {0}
    # who does not want to know is not told
    env.env["XRDMA_RDMA_COMPARE"] = "no"
    shell.Pair(env).upgrade()


def test_moved(env, two):
    """
    It was as fast as TCP when it moved, and is not any more: back, with all its bytes. The end that sees it first leaves; the
    other one has lost its channel, and finds nobody afterwards.
    """
    late(two[0], "1us")
    p = shell.Pair(env).upgrade()
    late(two[0], "25ms")
    harness.until(lambda: (p.turns(20, 1000), "slower-path" in reasons(p))[1], 20, lambda: str(reasons(p)))
    p.turns(100, 1000)
    assert {f["carrier"] for f in p.carriers().values()} == {"tcp"}


def test_asked(keys, two):
    """xr-ping says it, too."""
    with listening(two[1], keys[0], **COMPARED):
        late(two[0], "1us")
        status, o, _ = ping(two[0], keys[0], two[1].address, "-s64", **COMPARED)
        assert (status, o["reason"]) == (0, "none"), o
    with listening(two[1], keys[0], **COMPARED):
        # of TCP it has seen one round trip
        late(two[0], "100ms")
        status, o, _ = ping(two[0], keys[0], two[1].address, "-s64", "-W", "15", **COMPARED)
        assert (status, o["reason"]) == (1, "slower-path"), o
