# SPDX-License-Identifier: BSD-2-Clause
"""Small sends that follow each other without a pause are a stream, which has a way of its own through the library:
what happens to a connection meanwhile must not be missed there."""
import json
import os
import signal
import subprocess
import time

import pytest

import harness

pytestmark = [pytest.mark.modes("plain", "both"), pytest.mark.timeout(60)]

HOW = pytest.mark.parametrize("how", [(), ("duplex",)], ids=["one-way", "duplex"])


def streams(env, end):
    """It has moved, and most messages went behind another one."""
    flow = [f for f in env.flows() if f["pid"] == end.pid]
    return flow and flow[0]["carrier_tx"] == "shm" and flow[0]["tx"]["coalesced"] > flow[0]["tx"]["messages"] / 2


def start(env, how=()):
    s = env.start("server", [harness.prog("xrsmall"), "server", *how])
    c = env.start("client", [harness.prog("xrsmall"), "client", s.line(), *how])
    if env.lifts:
        # a stream is one where the processor has time for it
        harness.until(lambda: streams(env, c), 30, lambda: "a stream: %r" % env.flows())
    else:
        time.sleep(0.2)
    return s, c


def answers(*ends):
    """What each end says, until it ends."""
    got = []
    for e in ends:
        while line := e.line(30, eof_ok=True):
            got.append(json.loads(line))
        assert e.wait() == 0
    assert all(g["error"] == "0" for g in got), got
    return [[g[k] for g in got if k in g] for k in ("sent", "read")]


def over(s, c):
    for e in c, s:
        e.say("enough\n")
    sent, read = answers(c, s)
    assert sorted(sent) == sorted(read) and sum(sent) > 0, (sent, read)


@HOW
def test_arrives(env, how):
    over(*start(env, how))


@HOW
@pytest.mark.modes("both")
def test_moved_to_and_fro(env, how):
    """An operator takes it back to TCP and lets it return, again and again."""
    s, c = start(env, how)
    for i in range(10):
        for way in "--retreat", "--return":
            subprocess.run([harness.find("xr-stat", "tools/xr-stat"), way, "--pid=%d" % (s, c)[i % 2].pid],
                           env={**os.environ, **env.env}, check=True, timeout=20, stdout=subprocess.DEVNULL)
            time.sleep(0.02 * (i % 3))
    harness.until(lambda: streams(env, c), 30, lambda: "that it streams again: %r" % env.flows())
    over(s, c)


@HOW
@pytest.mark.parametrize("victim", ["server", "client"])
def test_killed(env, victim, how):
    s, c = start(env, how)
    dead, other = (s, c) if victim == "server" else (c, s)
    begun = time.monotonic()
    dead.reap()
    got = json.loads(other.line(5))
    assert time.monotonic() - begun < 1, got
    assert got["error"] in ("0", "ECONNRESET", "EPIPE"), got
    if how:
        assert json.loads(other.line(5))["error"] in ("0", "ECONNRESET", "EPIPE")


@HOW
def test_stopped(env, how):
    """The reader stands still, the writer fills the window and waits, and both go on."""
    s, c = start(env, how)
    for _ in range(4):
        os.kill(s.pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(s.pid, signal.SIGCONT)
        time.sleep(0.02)
    over(s, c)


def test_left_by_longjmp(env):
    """A handler leaves send(2) in the middle, five hundred times: the connection goes on."""
    s = env.start("server", [harness.prog("xrsmall"), "server", "jump"])
    c = env.start("client", [harness.prog("xrsmall"), "client", s.line(), "jump"])
    assert json.loads(c.line(30)) == {"jumped": 500, "error": "0"}
    got = json.loads(s.line(30))
    assert got["error"] == "0" and got["read"] > 0, got
    assert (c.wait(), s.wait()) == (0, 0)


def test_left_by_longjmp_while_it_waits(env):
    """A handler leaves recv(2), ten thousand times, asleep or on its way there: what comes after is read as before."""
    s = env.start("server", [harness.prog("xrsmall"), "server", "leap"])
    c = env.start("client", [harness.prog("xrsmall"), "client", s.line(), "leap"])
    assert json.loads(s.line(60)) == {"leapt": 10000, "error": "0"}
    assert json.loads(c.line(30)) == {"paused": 0, "error": "0"}
    assert (c.wait(), s.wait()) == (0, 0)
