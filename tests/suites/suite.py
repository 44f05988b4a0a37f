# SPDX-License-Identifier: BSD-2-Clause
"""Runs a test program that others wrote, plain or on the fabric, and compares what its tests said.

Every run has a network namespace of its own, since such programs like fixed ports; it is also what
tells the processes that a run has left behind from everybody else's.
"""
import contextlib
import ctypes
import fcntl
import functools
import glob
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest

import deviations
import harness

HERE = os.path.dirname(os.path.realpath(__file__))
PYTHON = "/usr/bin/python3"

# XRDMA_SUITES=all: every test of every suite, and the plain run of each beside it.
ALL = os.environ.get("XRDMA_SUITES", "") == "all"
whole = pytest.mark.skipif(not ALL, reason="only with XRDMA_SUITES=all")

# From the first byte on: what is to be tested is the flow on the fabric.
EAGER = {"XRDMA_UPGRADE_TURNS": "0", "XRDMA_UPGRADE_BYTES": "0"}

# Settings of the machine's that would change what a suite does.
NOT_OURS = ("PYTEST_CURRENT_TEST", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "MAKEFLAGS", "LD_PRELOAD")

CLONE_NEWNET = 0x40000000
PR_SET_NO_NEW_PRIVS = 38
libc = ctypes.CDLL(None, use_errno=True)


def enter_namespace():
    """A network of its own, with nothing but a loopback device in it, which is up."""
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket() as s:
        name = b"lo".ljust(16, b"\0")
        flags = struct.unpack_from("16xh", fcntl.ioctl(s, 0x8913, name + bytes(24)))[0]  # SIOCGIFFLAGS
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", name, flags | 1))  # SIOCSIFFLAGS, IFF_UP


@functools.lru_cache(None)
def can_enter():
    return subprocess.run(["true"], preexec_fn=_try_namespace, check=False).returncode == 0


def _try_namespace():
    try:
        enter_namespace()
    except OSError:
        os._exit(1)


def need_namespace():
    if not can_enter():
        pytest.skip("needs the right to make a network namespace: run as root")


# ---- statistics ----------------------------------------------------------------------------------

COUNTERS = ("opened", "closed", "upgraded", "shm", "rdma", "attempts", "failed", "refused", "retreats")
INTERNAL_ERRORS = 24  # place in XR_STATS_TABLE


class Keeper:
    """Holds on to the statistics of every process of a run: they go with the process otherwise."""

    IN_CREATE = 0x100

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="xrdma-suite-", dir="/dev/shm")
        self.kept = os.path.join(self.dir, "kept")
        os.mkdir(self.kept)
        os.chmod(self.dir, 0o1777)
        self.notes = libc.inotify_init1(os.O_CLOEXEC)
        libc.inotify_add_watch(self.notes, self.dir.encode(), self.IN_CREATE)
        self.watched = set()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def look(self):
        for d in glob.glob(self.dir + "/xrdma-*"):
            if d not in self.watched:
                libc.inotify_add_watch(self.notes, d.encode(), self.IN_CREATE)
                self.watched.add(d)
            with contextlib.suppress(OSError):
                for name in os.listdir(d):
                    self.keep(d, name)

    def keep(self, d, name):
        with contextlib.suppress(OSError):
            if not name.endswith(".bell"):
                os.link(os.path.join(d, name), os.path.join(self.kept, name))

    def watch(self):
        """A process may live for some milliseconds only."""
        while os.read(self.notes, 65536) and os.path.isdir(self.kept):
            self.look()

    def close(self):
        """The totals over all processes."""
        self.look()
        names = os.listdir(self.kept)
        total = dict.fromkeys((*COUNTERS, "internal"), 0)
        for name in names:
            with open(os.path.join(self.kept, name), "rb") as fd:
                page = fd.read(4096)
            n = struct.unpack_from("<24xI", page)[0]
            counter = struct.unpack_from("<%dQ" % n, page, 512)
            for key, value in zip(COUNTERS, counter):
                total[key] += value
            total["internal"] += counter[INTERNAL_ERRORS]
        # the last thing that the thread hears of
        shutil.rmtree(self.kept)
        os.mkdir(os.path.join(self.dir, "end"))
        self.thread.join()
        os.close(self.notes)
        shutil.rmtree(self.dir)
        return total


# ---- one run -------------------------------------------------------------------------------------

class Run:
    def __init__(self, rc, out, total):
        self.rc, self.out, self.total = rc, out, total


def left_behind(inode, signum):
    """Signals the processes of a namespace; returns how many there were."""
    n = 0
    for d in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            if os.stat(d + "/ns/net").st_ino == inode:
                fd = os.pidfd_open(int(d[6:]))
                try:
                    if os.stat(d + "/ns/net").st_ino == inode:
                        signal.pidfd_send_signal(fd, signum)
                        n += 1
                finally:
                    os.close(fd)
    return n


def on_fabric(argv, warm):
    """The command, under xrdma; warm: as warm.c says."""
    objects = "%s:" % os.path.join(harness.build_dir(), "tests/suites/warm.so") if warm else ""
    if not warm:
        return [*harness.run_prefix(), *argv]
    return [*harness.run_prefix(), "sh", "-c", 'LD_PRELOAD="%s$LD_PRELOAD" exec "$@"' % objects, "sh", *argv]


def warm_object():
    """Built where the rest is built; it is no program, so make does not know it."""
    out = os.path.join(harness.build_dir(), "tests/suites/warm.so")
    src = os.path.join(HERE, "warm.c")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(out) or os.stat(out).st_mtime < os.stat(src).st_mtime:
            subprocess.run([os.environ.get("CC", "cc").split()[0], "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE",
                            "-o", out + ".new", src, "-ldl", "-lpthread"], check=True)
            os.rename(out + ".new", out)


def run(argv, fabric=True, warm=True, cwd=None, env=None, nobody=False, timeout=300):
    """Runs a program to its end; its output is both of its streams. The whole namespace ends with it."""
    need_namespace()
    keeper = Keeper()
    if fabric:
        warm_object() if warm else None
        argv = on_fabric([str(a) for a in argv], warm)
    if nobody and os.geteuid() == 0:
        argv = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", *argv]
    full = {k: v for k, v in os.environ.items() if k not in NOT_OURS and not k.startswith("XRDMA_")}
    full.update(EAGER, XRDMA_STATS_DIR=keeper.dir, LC_ALL="C.UTF-8", **(env or {}))
    ns = None
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd,
                             env=full, preexec_fn=enter_namespace, start_new_session=True)
        try:
            ns = os.stat("/proc/%d/ns/net" % p.pid).st_ino
            p.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            while ns and left_behind(ns, signal.SIGKILL):
                time.sleep(0.02)
            total = keeper.close()
        out.seek(0)
        return Run(p.returncode, out.read().decode(errors="replace"), total)


# ---- one end only --------------------------------------------------------------------------------

ENDS = ("server", "client")  # which of the two is under xrdma


def one_end(end, program, path):
    """Makes path a program that starts the server so that the other one of the two is alone under xrdma, or it is."""
    words = " ".join(harness.run_prefix()) if end == "server" else "env -u LD_PRELOAD"
    path.unlink(missing_ok=True)
    path.write_text('#!/bin/sh\nexec %s %s "$@"\n' % (words, shutil.which(program)))
    path.chmod(0o755)


def judge_one_end(suite, again, got, seen):
    """seen: so many connections at least were under xrdma at one end, and stayed where they were."""
    judge(suite, again, got, 0)
    # those of a suite's own programs with each other may move
    assert got.total["attempts"] - got.total["upgraded"] >= seen and got.total["upgraded"] < seen, got.total


# ---- comparison ----------------------------------------------------------------------------------

def judge(suite, again, got, least=1, plain=None):
    """got: the Run on the fabric, with its results {test: "pass", "fail" or "skip"}.

    again(tests) gives the plain results of these tests; plain is the whole plain run, if there was one.
    Such suites measure time here and there: what fails on the fabric is a difference unless
    it is seen to fail on TCP too, in one of three runs.
    """
    assert got.results, got.out[-3000:]
    if plain is not None:
        missing = set(plain) ^ set(got.results)
        assert not missing, "only one of the two runs has these tests: %s" % sorted(missing)
        differ = {t for t, r in got.results.items() if r != plain[t] and r != "pass"}
    else:
        differ = {t for t, r in got.results.items() if r == "fail"}
    for _ in range(3):
        differ = {t for t in differ if not deviations.is_known(suite, t)}
        if not differ:
            break
        fresh = again(sorted(differ))
        differ = {t for t in differ if fresh.get(t) != got.results[t]}
    assert not differ, "not as on TCP: %s\n%s" % (
        {t: got.results[t] for t in sorted(differ)}, got.out[-6000:])
    assert got.total["internal"] == 0, got.total
    assert got.total["upgraded"] >= least, "hardly a connection moved: %r" % got.total
