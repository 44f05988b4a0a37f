# SPDX-License-Identifier: BSD-2-Clause
"""A load that runs until it is told to end, in both directions at once, each byte checked by who gets it."""
import contextlib
import ctypes
import fcntl
import os
import random
import signal
import struct
import subprocess
import time

import harness
import hosts


class Load:
    def __init__(self, env, conns=4, wait="poll", stall=20, **options):
        self.env, self.conns = env, conns
        self.seed = int(os.environ.get("XRT_SEED") or random.getrandbits(40))
        options = {"seed": self.seed, "conns": conns, "stall": stall, "io": "send", "seg": 65536, **options}
        wait = (wait, wait) if isinstance(wait, str) else wait
        args = ["--endless"] + ["--%s=%s" % o for o in options.items()]
        self.server = env.start("server", [harness.prog("xrt"), "server", "--wait=" + wait[0], *args])
        self.client = env.start("client", [harness.prog("xrt"), "client", "--wait=" + wait[1], *args,
                                           "--port=%d" % self.server.json()["port"]])

    def ends(self):
        """Both ends of all connections, as xr-stat shows them."""
        return [f for f in self.env.flows() if f["pid"] in (self.server.pid, self.client.pid)]

    def is_on(self, carrier):
        for p in (self.server, self.client):
            if p.poll() is not None:
                raise AssertionError("ended: " + p.describe())
        got = self.ends()
        return len(got) == 2 * self.conns and all(f["carrier"] == carrier for f in got)

    def wait_for(self, carrier, timeout=10.0):
        harness.until(lambda: self.is_on(carrier), timeout, lambda: "all on %s: %s" % (carrier, self.describe()), 0.02)

    def describe(self):
        return "seed %d\n%s" % (self.seed, "\n".join(
            "%s:%d %s/%s %s, %s retreats, tx %s rx %s" % (f["role"], f["local_port"], f["carrier_tx"], f["carrier_rx"],
                                                          f["reason"], f["retreats"], f["tx"]["bytes"], f["rx"]["bytes"])
            for f in self.ends()))

    def got(self):
        """What each end has read: {(role, port of the client): bytes}."""
        return {(f["role"], f["local_port" if f["role"] == "client" else "peer_port"]): sum(f["rx"]["bytes"].values())
                for f in self.ends()}

    def wait_moving(self, timeout=10.0, least=100000):
        """Each connection moves, both ways."""
        was = self.got()
        assert len(was) == 2 * self.conns, self.describe()

        def moved():
            now = self.got()
            return all(now.get(k, 0) >= n + least for k, n in was.items())
        harness.until(moved, timeout, lambda: "bytes: %s" % self.describe(), 0.02)

    def counter(self, name):
        return sum(self.env.counters(p.pid)[0][name] for p in (self.server, self.client))

    def wait_reason(self, role, reason, timeout=20.0):
        """Why this end stays on TCP."""
        def there():
            got = [f for f in self.ends() if f["role"] == role]
            return len(got) == self.conns and all((f["carrier"], f["reason"]) == ("tcp", reason) for f in got)
        harness.until(there, timeout, lambda: "%s: %s" % (reason, self.describe()), 0.05)

    def wait_broken(self, end, errors, timeout=30):
        """The end gets one of these errors, as on TCP."""
        got = end.json(timeout)
        assert got["op"] and got["error"] in errors, (got, end.describe())
        end.wait()

    def end(self, timeout=30):
        """Both ends stop sending, and all that was sent has come, once and in order."""
        for p in (self.server, self.client):
            p.kill(signal.SIGUSR1)
        # what an end that waits in vain was waiting for: it says so when it has closed all
        begun, seen = time.monotonic(), []
        while self.server.poll() is None and self.client.poll() is None and time.monotonic() < begun + timeout:
            time.sleep(0.02)
            if time.monotonic() > begun + 5 * (len(seen) + 1):
                with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                    seen.append("after %.0f s, %s" % (time.monotonic() - begun, self.describe()))
        rc, rs = self.client.json(timeout), self.server.json(timeout)
        note = "seed %d\nserver: %s\nclient: %s\n%s\n%s\n%s" % (
            self.seed, rs, rc, self.server.describe(), self.client.describe(), "\n".join(seen))
        assert rs["op"] is None and rc["op"] is None, note
        assert (self.server.wait(), self.client.wait()) == (0, 0), note
        assert rs["tx_sum"] == rc["rx_sum"] and rs["rx_sum"] == rc["tx_sum"], note
        assert (rs["tx"], rs["rx"]) == (rc["rx"], rc["tx"]), note
        return rc["tx"] + rc["rx"]


_MODIFY_QP, _IOCTL = 26, 0xC0181B01


def spoil(pid):
    """Every queue pair that this process has goes to the error state, without a word to it: how many did.
    By the process's own descriptor of the device, as ibv_modify_qp() does it."""
    libc, n = ctypes.CDLL(None, use_errno=True), 0
    for task in map(int, os.listdir("/proc/%d/task" % pid)):
        # the module's thread has descriptors of its own
        pidfd, folder = os.pidfd_open(task, os.O_EXCL), "/proc/%d/task/%d/fd/" % (pid, task)    # PIDFD_THREAD
        try:
            for name in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if not os.readlink(folder + name).startswith("/dev/infiniband/uverbs"):
                        continue
                    fd = libc.syscall(438, pidfd, int(name), 0)    # pidfd_getfd
                    n += sum(_spoil_one(fd, handle) for handle in range(256))
                    os.close(fd)
        finally:
            os.close(pidfd)
    return n


def _spoil_one(fd, handle):
    """struct ib_uverbs_modify_qp: where to, twice; handle, IBV_QP_STATE, ...; IBV_QPS_ERR"""
    core = ctypes.create_string_buffer(struct.pack("64xII20x4xB15x", handle, 1, 6))
    attrs = struct.pack("HHHHQ", 0, len(core) - 1, 1, 0, ctypes.addressof(core))
    attrs += struct.pack("HHHHQ", 2, 8, 1, 0, _MODIFY_QP)
    request = bytearray(struct.pack("HHHHQII", 24 + len(attrs), 0, 0, 2, 0, 14, 0) + attrs)
    try:
        fcntl.ioctl(fd, _IOCTL, request)
        return True
    except OSError:
        return False


def resources(two):
    """What the kernel holds for users of the devices of these hosts: {"qp": 2, ...}."""
    got = {}
    for line in hosts.call("rdma", "res", "show").splitlines():
        name, counts = line.split(": ", 1)[1].split(":", 1)
        if name not in [h.device for h in two]:
            continue
        words = counts.split()
        for name, n in zip(words[::2], words[1::2]):
            got[name] = got.get(name, 0) + int(n)
    return got


def wait_resources(two, want, timeout=10.0, over=0):
    """Memory that pools have registered comes and goes with the load: leave "mr" out of want. Queue pairs that are kept for the
    next connection are `over`."""
    def there():
        got = resources(two)
        return all(n <= got[k] <= n + (over if k == "qp" else 0) for k, n in want.items())
    harness.until(there, timeout, lambda: "resources %s: %s" % (want, resources(two)), 0.05)
