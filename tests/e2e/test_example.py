# SPDX-License-Identifier: BSD-2-Clause
"""The examples, as a user would run them."""
import os
import random
import re
import subprocess
import time

import harness


def echo(name, text):
    return subprocess.run([harness.find("examples/echo-client"), name, text], capture_output=True, timeout=20)


def test_echo():
    """The server answers a short text, one that is READ, and several clients, one after the other."""
    name = "example.%d.%d" % (os.getpid(), time.monotonic_ns())
    server = subprocess.Popen([harness.find("examples/echo-server"), name])
    try:
        end = time.monotonic() + 10
        while (r := echo(name, "hello")).stdout != b"hello\n":  # until it listens
            assert server.poll() is None and time.monotonic() < end, r
            time.sleep(0.05)
        for n in (1, 4096, 4097, 100000):
            text = "".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=n))
            r = echo(name, text)
            assert (r.returncode, r.stdout.decode()) == (0, text + "\n")
        used = harness.cpu_s(server.pid)
        time.sleep(0.5)  # the measurement: a server without clients sleeps
        assert harness.cpu_s(server.pid) - used <= 0.05
    finally:
        server.kill()
        server.wait()
    r = echo(name, "hello")
    assert r.stdout == b"" and b"echo-client:" in r.stderr


def test_lines_of_code():
    """Server and client together stay under 50 lines, without comments and blank lines."""
    total = 0
    for name in ("echo-server.c", "echo-client.c"):
        with open(os.path.join(harness.SOURCE, "examples", name)) as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        total += sum(1 for line in text.splitlines() if line.strip())
    assert total < 50, total
