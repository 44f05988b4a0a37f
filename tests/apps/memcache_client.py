# SPDX-License-Identifier: BSD-2-Clause
"""Sets and gets values of many sizes over one connection; prints ok when each came back."""
import os
import random
import socket
import sys


def main():
    s = socket.create_connection((os.environ["TEST_ADDRESS"], int(sys.argv[1])))
    f = s.makefile("rb")
    rng = random.Random(7)

    def put(key, value):
        s.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        line = f.readline()
        assert line == b"STORED\r\n", line

    def get(key):
        s.sendall(b"get %s\r\n" % key)
        line = f.readline()
        n = int(line.split()[3])
        value = f.read(n)
        assert f.read(7) == b"\r\nEND\r\n"
        return value

    for i in range(60):
        put(b"w", b"%d" % i * 100)
    print("warm", flush=True)
    sys.stdin.readline()
    values = {}
    for i in range(200):
        key = b"key%d" % rng.randrange(60)
        values[key] = rng.randbytes(rng.choice((1, 50, 1000, 4096, 70000, 1000000)))
        put(key, values[key])
        probe = rng.choice(list(values))
        assert get(probe) == values[probe], probe
    s.sendall(b"".join(b"get %s\r\n" % k for k in values))  # pipelined
    for k, v in values.items():
        n = int(f.readline().split()[3])
        assert f.read(n) == v and f.read(7) == b"\r\nEND\r\n"
    s.sendall(b"quit\r\n")
    assert f.read() == b""
    print("ok")


main()
