# SPDX-License-Identifier: BSD-2-Clause
"""Two xrsh programs led step by step: every return value and errno of every call is seen."""
import errno
import itertools
import os
import select as sel
import socket
import time
import types

import harness

EV_IN, EV_PRI, EV_OUT, EV_ERR, EV_HUP, EV_RDHUP = 1, 2, 4, 8, 16, 0x2000
EV_ET, EV_ONESHOT, EV_EXCLUSIVE = 1 << 31, 1 << 30, 1 << 28
ADD, DEL, MOD = 1, 2, 3
NOSIGNAL, DONTWAIT, PEEK, WAITALL = (socket.MSG_NOSIGNAL, socket.MSG_DONTWAIT, socket.MSG_PEEK,
                                     socket.MSG_WAITALL)


def pattern(key, off, n):
    """The bytes that pattern_fill() of pattern.h makes, for files that a test reads itself."""
    mask, out = (1 << 64) - 1, bytearray()
    for word in range(off // 8, (off + n + 7) // 8):
        x = (key + word * 0x9e3779b97f4a7c15) & mask
        x = ((x ^ x >> 33) * 0xff51afd7ed558ccd) & mask
        x = ((x ^ x >> 33) * 0xc4ceb9fe1a85ec53) & mask
        out += (x ^ x >> 33).to_bytes(8, "little")
    return bytes(out[off % 8:off % 8 + n])


# what xrsh shows of struct tcp_info, in its order
INFO = ("state", "len", "bytes_sent", "bytes_acked", "bytes_received", "segs_out", "segs_in", "data_segs_out",
        "data_segs_in", "notsent_bytes", "unacked", "rtt", "min_rtt", "snd_mss", "snd_cwnd", "last_data_sent",
        "last_data_recv", "snd_wnd", "bytes_retrans")


class Result:
    def __init__(self, text):
        part = text.split()
        self.ret, self.errno, self.us = int(part[1]), int(part[2]), float(part[3])
        self.words = part[4:]

    @property
    def ints(self):
        return [int(w) for w in self.words]

    @property
    def err(self):
        """The errno's name, or None after success."""
        return errno.errorcode.get(self.errno, self.errno) if self.ret < 0 else None

    def __repr__(self):
        return "<%s%s %.0fus%s>" % (self.ret, " " + str(self.err) if self.ret < 0 else "", self.us,
                                    " " + " ".join(self.words) if self.words else "")


class Pending:
    def __init__(self, shell, id):
        self.shell, self.id = shell, id

    def done(self, within=0.0):
        return self.shell.collect(self.id, within)

    def result(self, timeout=10.0):
        timeout *= harness.PATIENCE
        if not self.shell.collect(self.id, timeout):
            raise harness.Timeout("call %d (%s) has not returned after %.1f s\n%s" % (
                self.id, self.shell.asked.get(self.id), timeout, self.shell.proc.describe()))
        return self.shell.results.pop(self.id)


class Shell:
    def __init__(self, env, role, *first, program=None, **kw):
        self.env = env
        self.proc = env.start(role, [program or harness.prog("xrsh"), *first], **kw)
        self.ids = itertools.count(1)
        self.results, self.asked = {}, {}

    @property
    def pid(self):
        return self.proc.pid

    def order(self, text):
        self.proc.say(text)

    def next_line(self, timeout):
        return self.proc.line(timeout / harness.PATIENCE)

    def collect(self, id, within):
        end = time.monotonic() + within
        while id not in self.results:
            try:
                text = self.next_line(max(0.0, end - time.monotonic()))
            except harness.Timeout:
                return False
            self.results[int(text.split()[0])] = Result(text)
        return True

    def bg(self, name, *args):
        return self._ask("&" + name, args)

    def later(self, name, *args):
        """By the main thread, which takes no other order until it has done this one."""
        return self._ask(name, args)

    def _ask(self, name, args):
        id = next(self.ids)
        self.asked[id] = "%s %s" % (name, " ".join(str(int(a) if isinstance(a, int) else a) for a in args))
        self.order("%d %s\n" % (id, self.asked[id]))
        return Pending(self, id)

    def __call__(self, name, *args, timeout=10.0):
        return self._ask(name, args).result(timeout)

    def ok(self, name, *args, timeout=10.0):
        r = self(name, *args, timeout=timeout)
        assert r.ret >= 0, "%s %s: %s" % (name, args, r)
        return r.ret

    def asleep(self, timeout=5.0):
        """Every thread of the program sleeps in the kernel."""
        def all_asleep():
            try:
                for t in os.listdir("/proc/%d/task" % self.pid):
                    with open("/proc/%d/task/%s/stat" % (self.pid, t)) as f:
                        if f.read().rsplit(")", 1)[1].split()[0] != "S":
                            return False
            except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
                return False
            return True
        harness.until(lambda: all_asleep() and all_asleep(), timeout, "all threads asleep", 0.002)

    def fork(self):
        """A forked child of this shell, led by the same means."""
        return Child(self, "fork")

    def daemon(self, noclose):
        return Child(self, "daemon", noclose)


class Child(Shell):
    def __init__(self, parent, how, *args):
        self.env, self.proc = parent.env, parent.proc
        self.ids = itertools.count(1)
        self.results, self.asked, self.buf = {}, {}, b""
        d = self.env.stats
        names = [os.path.join(d, "fifo-%d-%d-%s" % (parent.pid, next(_serial), w)) for w in ("in", "out")]
        for n in names:
            os.mkfifo(n)
        if how == "fork":
            self._pid = parent.ok("fork", *names)
        else:
            parent.order("0 daemon %s %s %d\n" % (*names, args[0]))
            self._pid = None
        self.into = os.open(names[0], os.O_WRONLY)
        self.out = os.open(names[1], os.O_RDONLY)
        self.env.closers.append(self.end)

    @property
    def pid(self):
        return self._pid

    def order(self, text):
        os.write(self.into, text.encode())

    def next_line(self, timeout):
        end = time.monotonic() + timeout
        while b"\n" not in self.buf:
            if not sel.select([self.out], [], [], max(0.0, end - time.monotonic()))[0]:
                raise harness.Timeout("child silent")
            data = os.read(self.out, 1 << 16)
            if not data:
                raise AssertionError("forked child ended: " + self.proc.describe())
            self.buf += data
        text, _, self.buf = self.buf.partition(b"\n")
        return text.decode()

    def end(self):
        """Close the orders: the child returns from main."""
        if self.into is not None:
            os.close(self.into)
            os.close(self.out)
            self.into = None


_serial = itertools.count(1)


class End:
    """One end of a connection: a descriptor in a shell, and where both streams stand."""

    def __init__(self, shell, fd, tx_key, rx_key):
        self.sh, self.fd, self.tx_key, self.rx_key = shell, fd, tx_key, rx_key
        self.tx, self.rx = 0, 0

    def as_seen_by(self, shell, fd=None):
        e = End(shell, self.fd if fd is None else fd, self.tx_key, self.rx_key)
        e.tx, e.rx = self.tx, self.rx
        return e

    def send(self, n, flags=NOSIGNAL, name="send", timeout=10.0):
        r = self.sh(name, self.fd, n, flags, self.tx_key, self.tx, timeout=timeout)
        self.tx += max(0, r.ret)
        return r

    def recv(self, n, flags=0, name="recv", timeout=10.0):
        r = self.sh(name, self.fd, n, flags, self.rx_key, self.rx, timeout=timeout)
        assert r.words[0] == "ok", "wrong bytes at offset %d: %s" % (self.rx, r)
        if not flags & PEEK:
            self.rx += max(0, r.ret)
        return r

    def recv_bg(self, n, flags=0, name="recv"):
        return self.sh.bg(name, self.fd, n, flags, self.rx_key, self.rx)

    def send_bg(self, n, flags=NOSIGNAL):
        return self.sh.bg("send", self.fd, n, flags, self.tx_key, self.tx)

    def sendall(self, n, flags=NOSIGNAL, timeout=10.0):
        r = self.sh("sendall", self.fd, n, flags, self.tx_key, self.tx, timeout=timeout)
        self.tx += r.ret
        assert r.ret == n, r
        return r

    def fill(self):
        """Send without waiting until nothing more fits; returns what fitted."""
        n = 0
        quiet = 0
        while quiet < 20:
            r = self.send(65536, NOSIGNAL | DONTWAIT)
            if r.ret < 0:
                assert r.err == "EAGAIN", r
                quiet += 1
                time.sleep(0.002)
            else:
                n, quiet = n + r.ret, 0
        return n

    def drain(self, flags=0, timeout=10.0):
        """Read to the end: (bytes, errno name or None for end of stream)."""
        return self.drained(self.drain_bg(flags), timeout)

    def drain_bg(self, flags=0):
        return self.sh.bg("drain", self.fd, flags, self.rx_key, self.rx)

    def drained(self, pending, timeout=10.0):
        r = pending.result(timeout)
        assert r.words[1] == "ok", "wrong bytes: %s" % r
        self.rx += r.ret
        e = int(r.words[0])
        return r.ret, errno.errorcode[e] if e else None

    def poll(self, events, ms=0, timeout=10.0):
        r = self.sh("poll", ms, self.fd, events, timeout=timeout)
        assert r.ret >= 0, r
        return r.ints[0]

    def close(self):
        r = self.sh("close", self.fd)
        assert r.ret == 0, r

    def shutdown(self, how):
        return self.sh("shutdown", self.fd, how)

    def sockopt(self, opt, level=socket.SOL_SOCKET):
        r = self.sh("getsockopt", self.fd, level, opt)
        assert r.ret == 0, r
        return r.ints[0]

    def info(self, *size):
        """TCP_INFO, by name."""
        r = self.sh("tcp_info", self.fd, *size)
        assert r.ret == 0, r
        return types.SimpleNamespace(**dict(zip(INFO, r.ints)))

    def nonblock(self, on=True):
        fl = self.sh.ok("fcntl", self.fd, 3, 0)
        self.sh.ok("fcntl", self.fd, 4, fl | os.O_NONBLOCK if on else fl & ~os.O_NONBLOCK)


class Pair:
    """Two shells and connections between them. self.c is the client's end, self.s the server's."""

    def __init__(self, env, host=None, server=None, client=None):
        self.env, self.mode, self.host = env, env.mode, host or env.address
        self.server = server or Shell(env, "server")
        self.client = client or Shell(env, "client")
        self.family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.lfd = self.server.ok("socket", self.family, socket.SOCK_STREAM, 0)
        self.server.ok("setsockopt", self.lfd, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.ok("bind", self.lfd, self.host, 0)
        self.server.ok("listen", self.lfd, 128)
        self.port = int(self.server("getsockname", self.lfd).words[1])
        self.keys = itertools.count(int.from_bytes(os.urandom(5), "little") * 100)
        self.c, self.s = self.connect()

    def connect(self, flags=0, server=None, before=None):
        """A new connection; before(shell, fd) may set options of the client's socket."""
        cfd = self.client.ok("socket", self.family, socket.SOCK_STREAM | flags, 0)
        if before:
            before(self.client, cfd)
        self.client.ok("connect", cfd, self.host, self.port)
        sh = server or self.server
        sfd = sh.ok("accept", self.lfd, flags)
        k1, k2 = next(self.keys), next(self.keys)
        return End(self.client, cfd, k1, k2), End(sh, sfd, k2, k1)

    def turns(self, n=20, size=1000, c=None, s=None):
        """Ping-pong between the ends; the client speaks first."""
        c, s = c or self.c, s or self.s
        a = s.sh.bg("turns", s.fd, n, size, 0, s.tx_key, s.tx, s.rx_key, s.rx)
        b = c.sh.bg("turns", c.fd, n, size, 1, c.tx_key, c.tx, c.rx_key, c.rx)
        rb, ra = b.result(20), a.result(20)
        assert ra.ret == n and rb.ret == n, "turns: server %s, client %s" % (ra, rb)
        for e in (c, s):
            e.tx += n * size
            e.rx += n * size

    def port_of(self, end):
        return int(end.sh("getsockname", end.fd).words[1])

    def carriers(self, c=None):
        """What xr-stat says of the connection of this client end: {"server": flow, "client": flow}."""
        port = self.port_of(c or self.c)
        got = {}
        for f in self.env.flows():
            if f["local_port"] == port and f["peer_port"] == self.port:
                got["client"] = f
            elif f["peer_port"] == port and f["local_port"] == self.port:
                got["server"] = f
        return got

    def is_up(self, c=None):
        """Both ends have it on the fabric."""
        return [f["carrier"] for f in self.carriers(c).values()] == [self.env.fabric] * 2

    def relayed_to_the_end(self, s, end):
        """What a relay has still to do for s: the client was "stopped" and goes on, or has gone."""
        if end == "stopped":
            s.sendall(200000)
            s.close()
            assert self.c.drain() == (200000, None)
        else:
            assert s.drain() == (0, None)
            s.close()

    def upgrade(self, c=None, s=None):
        """Keep the connection busy until both ends are on the fabric; in other modes, as busy as that."""
        for i in range(50):
            self.turns(20 if i else 40, 1000, c, s)
            if not self.env.lifts:
                return self
            if self.is_up(c):
                return self
        raise AssertionError("not upgraded: %r" % self.carriers(c))
