# SPDX-License-Identifier: BSD-2-Clause
"""Real programs as servers and clients of one test."""
import hashlib
import os
import random
import socket
import time

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"


def free_port(env, role="server"):
    """A port that nobody had a moment ago, where the server will be. Whoever starts one with it tries
    again if it lost."""
    with env.on(role), socket.socket() as s:
        s.bind((env.address_of(role), 0))
        return s.getsockname()[1]


def listening(env, port, role="server"):
    """Somebody listens there; looked up, not connected to."""
    want = ":%04X" % port
    for name in ("tcp", "tcp6"):
        try:
            with env.on(role), open("/proc/thread-self/net/" + name) as f:
                for line in f:
                    part = line.split()
                    if len(part) > 3 and part[1].endswith(want) and part[3] == "0A":
                        return True
        except FileNotFoundError:
            continue
    return False


def serve(env, make, tries=5, role="server", **kw):
    """Start a server: make(port) gives its command line. Returns (process, port) once it listens."""
    for _ in range(tries):
        port = free_port(env, role)
        p = env.start(role, make(port), **kw)
        end = time.monotonic() + 15
        while not listening(env, port, role):
            if p.poll() is not None:
                break
            assert time.monotonic() < end, "does not listen: " + p.describe()
            time.sleep(0.005)
        else:
            return p, port
    raise AssertionError("did not start: " + p.describe())


def run(env, argv, role="client", timeout=60, stdin=None, check=True, **kw):
    """Run a program to its end; returns its standard output as bytes."""
    if stdin is not None:
        f = open(os.path.join(env.stats, "stdin-%d" % len(env.procs)), "wb+")
        f.write(stdin)
        f.seek(0)
        kw["stdin"] = f
    p = env.start(role, argv, **kw)
    out = finish(p, timeout)
    if stdin is not None:
        f.close()
    if check:
        assert p.returncode == 0, p.describe() + repr(out[-2000:])
    return out


def finish(p, timeout=60):
    """All output of a started program, and its end."""
    timeout *= harness.PATIENCE
    if p.p.stdin:
        p.p.stdin.close()
    os.set_blocking(p.p.stdout.fileno(), True)
    end = time.monotonic() + timeout
    import select
    parts = [p.buf]
    while True:
        if not select.select([p.p.stdout], [], [], max(0, end - time.monotonic()))[0]:
            raise harness.Timeout("did not end within %d s: %s" % (timeout, p.describe()))
        data = os.read(p.p.stdout.fileno(), 1 << 20)
        if not data:
            break
        parts.append(data)
    p.wait(max(1, end - time.monotonic()))
    return b"".join(parts)


def check_live(env, port, timeout=8.0, share=0.5, p=None):
    """While the load runs, most flows are where this mode has them. True, or False where the load, p,
    had no connection any more when it was first looked at."""
    if env.mode == "plain":
        return True

    def settled():
        ended = p and p.poll() is not None
        flows = [f for f in env.flows() if port in (f["local_port"], f["peer_port"])]
        good = [f for f in flows if env.settled(f)]
        seen[:] = [(f["pid"], f["state"], f["carrier"], f["reason"]) for f in flows]
        if not flows and ended:
            return "missed"
        return flows and len(good) >= len(flows) * share
    seen = []
    try:
        return harness.until(settled, timeout, "flows as expected", 0.05) != "missed"
    except harness.Timeout as e:
        raise AssertionError("%s: %r" % (e, seen)) from None


def blob(n, seed=1):
    """n bytes that repeat nowhere."""
    return random.Random(seed).randbytes(n)


def load(n, least=0):
    """So many requests, or fewer where each takes longer."""
    return max(n // 10, least) if harness.IN_GUEST else n


def sha(data):
    return hashlib.sha256(data).hexdigest()


def need(name):
    import pytest
    path = harness.have(name)
    if not path:
        pytest.skip("%s is not installed" % name)
    return path
