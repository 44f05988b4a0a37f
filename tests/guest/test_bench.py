# SPDX-License-Identifier: BSD-2-Clause
"""bench/guest with next to no load: every contender is measured, over what it is said to be measured over."""
import json
import os
import subprocess
import sys

import pytest

import harness
import hosts

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(TOP, "bench"))

from xrbench import far  # noqa: E402

pytestmark = [pytest.mark.timeout(150),
              pytest.mark.skipif("GUEST" not in os.environ, reason="runs in the guest: tests/guest/check")]


def measure(monkeypatch, rows):
    build = harness.build_dir()
    subprocess.run(["make", "-s", "-C", build, "bench/xr-pingpong"], check=True, capture_output=True, timeout=60)
    with hosts.Hosts(2, "rxe") as pair:
        for h in pair:
            for name, value in (("", h.name), ("_ADDRESS", h.address), ("_DEVICE", h.device),
                                ("_CPUS", ",".join(map(str, sorted(h.cpus or {0}))))):
                monkeypatch.setenv("HOST%d%s" % (h.number, name), value)
        said = []
        got = far.measure(build, [r for r in far.ROWS if r.ident in rows], 1, .2, said.append)
    # what outside is done with what comes out of the guest
    return json.loads(json.dumps(got)), said


def test_small(monkeypatch):
    # a busy machine may lose a sample to a time-out of somebody's
    for _ in range(3):
        got, said = measure(monkeypatch, ("rtt",))
        rtt = got["rows"][0]
        if all(far.values(rtt, name) for name in rtt["samples"]):
            break
    for name in ("tcp", "rsockets", "xrdma", "perftest"):
        assert far.values(rtt, name), said
    assert far.ratio(rtt, "rsockets") == far.median(rtt, "rsockets") / far.median(rtt, "xrdma")
    assert far.times(far.ratio(rtt, "rsockets")) in far.table(got)


def test_what_stays_on_tcp_does_not_count(monkeypatch):
    monkeypatch.setattr(far, "RSOCKETS", "")
    monkeypatch.setattr(far, "NAMES", ("rsockets",))
    got, said = measure(monkeypatch, ("rtt",))
    assert far.median(got["rows"][0], "rsockets") is None, said
    assert "on TCP" in got["rows"][0]["why"]["rsockets"]


def test_what_is_kept_is_had_at_a_quarter():
    """Queue pairs of the cache, and memory that is registered, cost no more than a quarter of new ones; all ways that
    should be known to connections are."""
    build = harness.build_dir()
    subprocess.run(["make", "-s", "-C", build, "bench/xr-setup"], check=True, capture_output=True, timeout=60)
    with hosts.Hosts(1, "rxe") as (a,), a.inside():
        p = subprocess.run([os.path.join(build, "bench/xr-setup"), "-d", "verbs:" + a.device, "-a", a.address + ":7777", "-p",
                            "-m", "200", "-j"], capture_output=True, text=True, check=False, timeout=100,
                           env=dict(os.environ, XRDMA_MODULE_DIR=os.path.join(build, ".libs")))
    assert p.returncode == 0, p.stdout + p.stderr
    got = {(r["part"], r["at_once"]): r for r in map(json.loads, p.stdout.splitlines())}
    print(p.stdout)
    assert sorted(got) == [("connection", 1), ("connection", 200), ("memory", 1), ("queue pair", 1), ("queue pair", 200)]
    assert all(r["kept"] == r["samples"][1] for r in got.values()), got
    # of one alone, a median of twenty, a wake-up is as long as the work
    for what in ("memory", 1), ("queue pair", 200):
        assert 0 < got[what]["kept_p50_us"] <= got[what]["new_p50_us"] / 4, got[what]
