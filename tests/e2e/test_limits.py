# SPDX-License-Identifier: BSD-2-Clause
"""Where there is nothing to spare the program still runs: on TCP, with a reason."""
import ctypes
import os
import resource
import signal
import socket
import struct

import pytest

import harness
import shell

pytestmark = pytest.mark.timeout(60)
M = 1 << 20


def limit(**limits):
    def apply():
        for name, n in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (n, n))
    return apply


def limited(env, both=None, server=None, client=None, wrap=(), hold=M, look=True, **extra):
    """A transfer whose ends start under limits; returns the flows seen at its middle."""
    args = ["--seed=%d" % int.from_bytes(os.urandom(4), "little"), "--wait=threads", "--c2s=2m",
            "--s2c=2m"]
    args += ["--%s=%s" % kv for kv in extra.items()]
    s = env.start("server", [harness.prog("xrt"), "server", *args], preexec=server or both, wrap=wrap)
    port = s.json()["port"]
    c = env.start("client", [harness.prog("xrt"), "client", "--port=%d" % port, "--hold=%d" % hold,
                             *args], preexec=client or both, wrap=wrap)
    c.json(20)  # has stopped
    live = env.flows() if look and env.mode != "plain" else []
    c.say("run\n")
    rs, rc = s.json(20), c.json(20)
    for p, r in ((s, rs), (c, rc)):
        assert r["op"] is None, p.describe()
        assert p.wait() == 0, p.describe()
    return live


def explained(live):
    """Whatever is on TCP says why."""
    for f in live:
        if f["carrier"] != "shm":
            assert f["reason"] not in ("none", "unknown", "internal"), f
    return live


# Descriptors: 0, 1, 2, the listener and the connection. A loader needs one while it starts.
@pytest.mark.parametrize("spare", [0, 1, 2, 3, 5, 8])
def test_descriptors(env, spare):
    explained(limited(env, server=limit(NOFILE=5 + spare), client=limit(NOFILE=4 + spare)))


@pytest.mark.parametrize("side", ["server", "client"])
def test_descriptors_one_side(env, side):
    explained(limited(env, **{side: limit(NOFILE=5)}))


def test_memlock_zero(env):
    explained(limited(env, limit(MEMLOCK=0)))


@pytest.mark.parametrize("mib", [32, 40, 64, 96, 112, 120, 128, 136, 512])
def test_address_space(env, mib):
    """RLIMIT_AS: mmap fails at some point, early or late. Two threads need their stacks of 8 MiB."""
    explained(limited(env, limit(AS=mib * M)))


@pytest.mark.parametrize("size", [0, 1, 4096, 100000, 3 * M])
def test_file_size(env, size):
    """RLIMIT_FSIZE also bounds memfds and ftruncate: EFBIG and SIGXFSZ, which kills."""
    explained(limited(env, limit(FSIZE=size)))


def test_data_limit(env):
    explained(limited(env, limit(DATA=24 * M)))


def test_core_zero_and_nproc(env):
    explained(limited(env, limit(CORE=0, STACK=256 * 1024)))


def test_many_connections_few_descriptors(env):
    """Forty connections in a process that may hold forty-odd descriptors."""
    live = explained(limited(env, limit(NOFILE=45), conns=40, wait="epoll"))
    if env.mode == "both":
        assert len(live) == 80


@pytest.mark.parametrize("path", ["/nonexistent/dir", "/proc", "/dev/null"])
@pytest.mark.parametrize("which", ["XRDMA_RUN_DIR", "XRDMA_STATS_DIR"])
def test_bad_directory(env, which, path):
    """A run or statistics directory that cannot be written to."""
    env.env[which] = path
    explained(limited(env, look=which != "XRDMA_STATS_DIR"))


def test_statistics_dir_of_someone_else(env):
    """A folder that others may write to is not trusted, and not needed."""
    d = os.path.join(env.stats, "xrdma-%d" % os.geteuid())
    os.mkdir(d, 0o777)
    os.chmod(d, 0o777)
    explained(limited(env))


def test_statistics_dir_symlink(env):
    os.symlink("/etc", os.path.join(env.stats, "xrdma-%d" % os.geteuid()))
    explained(limited(env))


def in_own_mounts(script):
    """Words that run a program with mounts of its own."""
    flags = ["-m"] if os.geteuid() == 0 else ["-r", "-m"]
    return ["unshare", *flags, "sh", "-c", script + ' && exec "$@"', "sh"]


@pytest.mark.parametrize("script", ["mount -t tmpfs -o size=4k none /dev/shm",
                                    "mount -t tmpfs -o ro none /dev/shm",
                                    "mount -t tmpfs none /dev",
                                    "mount -t tmpfs none /proc"])
def test_mounts(env, script):
    """No room in /dev/shm, a read-only one, an empty /dev, no /proc."""
    if env.mode != "plain":  # without /proc xrdma-run cannot find what it was built with
        env.env["XRDMA_PRELOAD"] = harness.find(".libs/libxrdma_preload.so", "libxrdma_preload.so")
    explained(limited(env, wrap=in_own_mounts(script)))


def test_other_user(env):
    """Nobody, who may write nowhere of ours."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")

    def drop():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    explained(limited(env, drop))


def test_two_users(env):
    """The ends run as different users: they do not share memory, they share TCP."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")

    def drop():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    explained(limited(env, client=drop))


# ---- seccomp: system calls that a sandbox forbids --------------------------------------------------

class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def forbid(numbers, error):
    """Calls with these numbers fail with this errno, None: they kill; installed before exec, as containers do."""
    code = [(0x20, 0, 0, 0)]  # load the number
    for i, nr in enumerate(numbers):
        code.append((0x15, len(numbers) - i, 0, nr))
    code += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x80000000 if error is None else 0x00050000 | error)]
    raw = b"".join(struct.pack("HBBI", *c) for c in code)
    buf = ctypes.create_string_buffer(raw, len(raw))
    prog = Fprog(len(code), ctypes.addressof(buf))
    libc = ctypes.CDLL(None, use_errno=True)

    def apply():
        assert buf and libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, ctypes.byref(prog)) == 0
    return apply


# x86-64 numbers
CALLS = {"memfd_create": 319, "eventfd2": 290, "membarrier": 324, "sendmsg": 46, "recvmsg": 47,
         "dup3": 292, "fcntl": 72, "ftruncate": 77, "getrandom": 318, "socketpair": 53, "gettid": 186,
         "timerfd_create": 283, "futex_waitv": 449, "process_vm_readv": 310, "statx": 332,
         "close_range": 436, "inotify_init1": 294, "epoll_create1": 291, "kcmp": 312}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the system call numbers are those of x86-64")
@pytest.mark.parametrize("error", [1, 38])
@pytest.mark.parametrize("call", sorted(CALLS))
def test_forbidden_call(env, call, error):
    """EPERM and ENOSYS from one call that xrdma may want and this program does not."""
    explained(limited(env, forbid([CALLS[call]], error)))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the system call numbers are those of x86-64")
@pytest.mark.parametrize("error", [None, 1, 38])
def test_a_call_that_few_programs_make(env, error):
    """open_tree: not tried under a filter that might kill for it, as those of services do; all moves without it."""
    p = shell.Pair(env, None, *(shell.Shell(env, role, preexec=forbid([428], error)) for role in ("server", "client")))
    p.upgrade()
    p.turns(20, 1000)


def test_killed_by_nothing(env):
    """The signals that limits raise are not blocked or ignored by us: the program's own stay its own."""
    p = env.start("client", ["sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status; kill -XFSZ $$"])
    p.wait()
    assert p.returncode == -signal.SIGXFSZ


def test_an_epoll_file_where_the_peer_takes_nothing(live):
    """No descriptor is left for us, and the peer is stopped with the window full: the call neither fails nor waits for it."""
    ends = [live.connect() for _ in range(16)]
    for c, s in ends:
        live.upgrade(c, s)
    assert live.server("rlimit", resource.RLIMIT_NOFILE, 64).ret == 0
    os.kill(live.client.pid, signal.SIGSTOP)
    try:
        for c, s in ends[:3]:
            s.nonblock()
            while s.send(1 << 20).ret > 0:
                pass
            ep = live.server.ok("epoll_create", 0)
            assert live.server("epoll_ctl", ep, 1, s.fd, 5, 7, timeout=20).ret == 0
    finally:
        os.kill(live.client.pid, signal.SIGCONT)
    c, s = ends[3]
    live.turns(10, 100, c, s)


def test_epoll_files_of_one_connection_each(live):
    """Each takes descriptors of ours where its connection is on a fabric: the program hears of none."""
    ends = [live.connect() for _ in range(16)]
    for c, s in ends:
        live.upgrade(c, s)
    assert live.server("rlimit", resource.RLIMIT_NOFILE, 64).ret == 0
    for i, (c, s) in enumerate(ends):
        ep = live.server.ok("epoll_create", 0)
        assert live.server("epoll_ctl", ep, 1, s.fd, 1, i).ret == 0
        c.sendall(100)
        assert live.server("epoll_wait", ep, 2, 2000).ret == 1
        assert s.recv(100, 0x100).ret == 100


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the system call numbers are those of x86-64")
def test_a_program_that_shuts_itself_in(env):
    """From its filter on, which kills, the calls that are made are its own."""
    sh = shell.Shell(env, "server")
    lfd = sh.ok("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    sh.ok("bind", lfd, "127.0.0.1", 0)
    sh.ok("listen", lfd, 1)
    echo = sh.bg("accept_echo", lfd, 1)
    c = env.start("client", [harness.prog("xrsandbox"), sh("getsockname", lfd).words[1]])
    assert echo.result().ret == 1
    assert c.wait() == 0, c.describe()
    assert sh("close", lfd).ret == 0
