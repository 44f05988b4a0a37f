# SPDX-License-Identifier: BSD-2-Clause
"""Bad addresses: each call answers as the kernel does on a plain connection, and goes on after it.

xrfault holds both ends; it has the same expectations of kernel TCP and of a fabric, and is run on both.
"""
import re
import signal

import pytest

import harness

pytestmark = pytest.mark.timeout(180)


class Fault:
    def __init__(self, env, *args):
        self.env = env
        self.proc = env.start("both" if env.mode == "plain" else env.mode, [harness.prog("xrfault"), *args])
        self.seen = []

    def cases(self, name):
        self.proc.say(name + "\n")
        while True:
            text = self.proc.line(120)
            self.seen.append(text)
            if text.startswith("done"):
                break
        checks, failures = (int(x) for x in text.split()[1:])
        assert not failures, "\n".join(self.seen)
        return checks

    def upgrade(self):
        for _ in range(20):
            self.cases("more")
            got = [f["carrier"] for f in self.env.flows(self.proc.pid)]
            if got == ["shm", "shm"]:
                return self
        raise AssertionError("not on shm: %r" % got)

    def end(self):
        self.proc.p.stdin.close()
        assert self.proc.wait() == 0, "\n".join(self.seen)


def on_shm(env, pid):
    return [f["carrier"] for f in env.flows(pid)] == ["shm", "shm"]


@pytest.fixture(params=("plain", "client"))
def fault(request):
    """A program whose two ends are on the mode's carrier."""
    env = harness.Env(request.param)
    try:
        f = Fault(env)
        yield f if env.mode == "plain" else f.upgrade()
    finally:
        env.close()


@pytest.fixture
def shimmed():
    env = harness.Env("client")
    yield env
    env.close()


@pytest.mark.parametrize("cases", ("read", "write", "wait", "option"))
def test_calls(fault, cases):
    assert fault.cases(cases) > 50
    # what it was asked for the kernel could not have answered in our place; FIOASYNC is never reached
    if fault.env.mode != "plain":
        assert on_shm(fault.env, fault.proc.pid)
    fault.end()


@pytest.mark.parametrize("cases", ("read", "write", "wait", "option"))
def test_on_the_way(shimmed, cases):
    """Before the first flow moves nothing is installed, and calls answer all the same."""
    f = Fault(shimmed)
    f.cases(cases)
    f.end()


def test_own_signals(fault):
    """The program's handlers are entered as ever, and default actions end it."""
    fault.cases("signal")
    # nothing between the handler and the kernel's frame, whatever the compiler makes of it
    frame = [int(t.split()[1]) for t in fault.seen if t.startswith("frame")]
    assert len(frame) == 1 and 0 < frame[0] < 200, frame
    fault.end()


def caught(pid, sig, mask="SigCgt"):
    with open("/proc/%d/status" % pid) as f:
        bits = int(re.search(r"%s:\s*(\w+)" % mask, f.read()).group(1), 16)
    return bits >> (sig - 1) & 1


def test_handlers_come_with_the_first_flow(shimmed):
    f = Fault(shimmed)
    shimmed.env["XRDMA_UPGRADE_TURNS"] = "1000000"
    assert not caught(f.proc.pid, signal.SIGSEGV) and not caught(f.proc.pid, signal.SIGBUS)
    f.upgrade()
    assert caught(f.proc.pid, signal.SIGSEGV) and caught(f.proc.pid, signal.SIGBUS)
    f.end()


def test_ignored_stays_ignored(shimmed):
    """A program that ignores SIGSEGV is not made one that catches it."""
    f = Fault(shimmed, "ignore").upgrade()
    assert caught(f.proc.pid, signal.SIGSEGV, "SigIgn") and not caught(f.proc.pid, signal.SIGSEGV)
    f.proc.kill(signal.SIGSEGV)
    f.cases("more")
    f.end()


PAIR = """
import faulthandler, os, signal, socket, sys, time
l = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(l.getsockname())
b = l.accept()[0]
def turns():
    for i in range(100):
        a.sendall(bytes(1000)); b.recv(1000, socket.MSG_WAITALL)
        b.sendall(b"x"); a.recv(1)
for i in range(5):
    turns(); time.sleep(0.01)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("when", ("before", "after"))
def test_faulthandler(shimmed, when):
    """CPython's handler, put there before or after ours, prints its trace; the end is SIGSEGV's."""
    on = "faulthandler.enable()\n"
    code = (on if when == "before" else "") + PAIR + (on if when == "after" else "")
    code = "import faulthandler\n" + code + "turns()\nfaulthandler._sigsegv()\n"
    p = shimmed.start("client", ["/usr/bin/python3", "-c", code])
    assert p.line() == "ready"
    assert on_shm(shimmed, p.pid)
    p.say("go\n")
    assert p.wait() == -signal.SIGSEGV, p.describe()
    assert "Fatal Python error: Segmentation fault" in p.stderr()
