#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""usage: crowd.py PORT N: N connections to a server that answers, and children made by subprocess.
Says "sound" when all connections have given back what was sent, waits for a line, runs the children,
uses the connections again and says so once more.
"""
import os
import random
import socket
import subprocess
import sys
import time

port, n = int(sys.argv[1]), int(sys.argv[2])
where = os.environ.get("TEST_ADDRESS", "127.0.0.1")
rng = random.Random(port)
socks = [socket.create_connection((where, port)) for _ in range(n)]


def turn(n=1):
    for s in socks:
        for _ in range(n):
            data = rng.randbytes(rng.randrange(1, 3000))
            s.sendall(data)
            assert s.recv(len(data), socket.MSG_WAITALL) == data


turn(8)
# handshakes go on with each turn, and the first link takes some
for _ in range(8):
    time.sleep(0.15)
    turn(3)
print("sound", flush=True)
sys.stdin.readline()
for _ in range(3):
    assert subprocess.run(["true"], check=False).returncode == 0
    assert subprocess.run(["false"], close_fds=False, check=False).returncode == 1
    assert subprocess.run("cat; exit 4", shell=True, input=b"x" * 300000, capture_output=True,
                          check=False).stdout == b"x" * 300000
    assert subprocess.run(["true"], start_new_session=True, preexec_fn=lambda: None,
                          check=False).returncode == 0
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        turn()
        assert p.communicate(b"hello")[0] == b"hello"
    turn()
# one connection is the child's: it says hello to itself
socks[0].sendall(b"12345")
out = subprocess.run(["head", "-c", "5"], stdin=socks[0], stdout=subprocess.PIPE, check=False).stdout
assert out == b"12345", out
turn()
print("sound", flush=True)
