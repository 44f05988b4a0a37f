# SPDX-License-Identifier: BSD-2-Clause
"""What the tests stand on: where the build is, how a program is started, watched and stopped, and
what a process and the machine must look like before and after.

Every program is started in a process group of its own and stopped by that number. The program is
left a zombie until then, so that the number cannot have become somebody else's: nothing else on the
machine is ever signalled. A server binds port 0 and says which port it got, so that any number
of test runs can share the machine.
"""
import contextlib
import errno
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

SOURCE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
MODES = ("plain", "server", "client", "both")
# conftest.py sets it: connections between hosts are carried; those within this one take the same way, over the shm
# device.
BRIDGE = False
# What carries a connection between hosts with such devices, and the settings for it.
FABRIC_BETWEEN_HOSTS = {"rxe": "rdma", "siw": None, "none": None}
RDMA = {"XRDMA_RDMA": "yes", "XRDMA_RDMA_TRUST": "fabric", "XRDMA_RDMA_SOFTWARE": "yes",
        # these devices are slower by nature, and whatever the machine is busy with shows
        "XRDMA_RDMA_COMPARE": "no"}
# In the guest, programs start slowly and system calls take long: longer waits, and less load.
IN_GUEST = "GUEST" in os.environ
# Threads stand still at random (configure --enable-perturb): everything takes longer, and says nothing of speed.
PERTURBED = "XRT_PERTURBED" in os.environ
# The build is one with ThreadSanitizer (configure --enable-tsan): what it says of a test's programs is a failure.
TSAN = "XRT_TSAN" in os.environ
EMULATED = os.environ.get("GUEST") == "qemu"
PATIENCE = 12 if EMULATED else 3 if IN_GUEST or PERTURBED or TSAN else 1

# Upgrades start at once and leave a trace in a statistics folder of the test's own.
EAGER = {"XRDMA_UPGRADE_TURNS": "1", "XRDMA_UPGRADE_BYTES": "4K"}


def build_dir():
    """$XRDMA_BUILD, or the source tree when it was built in place."""
    return os.path.realpath(os.environ.get("XRDMA_BUILD") or SOURCE)


def find(*names):
    """The first of these paths below the build folder that exists."""
    for n in names:
        p = os.path.join(build_dir(), n)
        if os.path.exists(p):
            return p
    raise FileNotFoundError("%s not found below %s: set XRDMA_BUILD and run make there, then "
                            "make test-programs" % (" or ".join(names), build_dir()))


def prog(name):
    return find("tests/e2e/" + name)


def prog_in(layer, name):
    return find("tests/%s/%s" % (layer, name))


def run_prefix(options=()):
    """The words that put a program under the shim."""
    return [find("xrdma-run", "tools/xrdma-run"), *options]


class Timeout(AssertionError):
    pass


class Proc:
    """A program, its output line by line, and its end."""

    def __init__(self, argv, shim=False, env=None, options=(), stdin=True, cwd=None, pass_fds=(),
                 preexec=None, stderr=None, wrap=()):
        self.argv = [str(a) for a in argv]
        self.shim = shim
        self.buf = b""
        self.eof = False
        self.seen = []
        full = [*wrap, *(run_prefix(options) if shim else []), *self.argv]
        self.errfile = stderr or tempfile.TemporaryFile()
        self.p = subprocess.Popen(
            full, stdin=subprocess.PIPE if stdin is True else stdin, stdout=subprocess.PIPE,
            stderr=self.errfile, env={**os.environ, **(env or {})}, cwd=cwd, pass_fds=pass_fds,
            preexec_fn=preexec, start_new_session=True)
        os.set_blocking(self.p.stdout.fileno(), False)
        self.pidfd = os.pidfd_open(self.p.pid)
        self.returncode = None

    @property
    def pid(self):
        return self.p.pid

    def poll(self, timeout=0.0):
        """The exit status as subprocess gives it, or None; does not reap."""
        if self.returncode is None and select.select([self.pidfd], [], [], timeout)[0]:
            r = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.returncode = r.si_status if r.si_code == os.CLD_EXITED else -r.si_status
        return self.returncode

    def stderr(self):
        self.errfile.seek(0)
        return self.errfile.read().decode(errors="replace")

    def describe(self):
        return "%s (pid %d, exit %s)\n  said: %r%r\n  stderr: %s\n  %s" % (
            " ".join(self.argv), self.pid, self.poll(), self.seen[-5:], self.buf[-300:],
            self.stderr()[-2000:], self.threads())

    def threads(self):
        """What each of its threads does, or is stuck in, the kernel's part included as far as it tells."""
        said, tids = [], []
        with contextlib.suppress(OSError):
            tids = sorted(os.listdir("/proc/%d/task" % self.pid)) if self.poll() is None else []
        for tid in tids:
            with contextlib.suppress(OSError):
                folder = "/proc/%d/task/%s/" % (self.pid, tid)
                with open(folder + "stat") as stat, open(folder + "wchan") as wchan:
                    name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
                    said.append("%s %s %s" % (name, rest.split()[0], wchan.read()))
            with contextlib.suppress(OSError, IndexError), open(folder + "stack") as stack:
                said[-1] += " < " + " < ".join(line.split()[-1] for line in stack.read().splitlines()[:12])
        return "\n  ".join(said)

    def line(self, timeout=10.0, eof_ok=False):
        """The next line of standard output, without its newline; None at the end if that is fine."""
        timeout *= PATIENCE
        end = time.monotonic() + timeout
        while b"\n" not in self.buf:
            if self.eof:
                if eof_ok:
                    return None
                raise AssertionError("output ended early: " + self.describe())
            if not select.select([self.p.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise Timeout("no output within %.0f s: %s" % (timeout, self.describe()))
            with contextlib.suppress(BlockingIOError):
                data = os.read(self.p.stdout.fileno(), 1 << 16)
                self.eof = not data
                self.buf += data
        text, _, self.buf = self.buf.partition(b"\n")
        self.seen.append(text.decode(errors="replace"))
        return self.seen[-1]

    def json(self, timeout=10.0):
        text = self.line(timeout)
        try:
            return json.loads(text)
        except ValueError:
            raise AssertionError("not JSON: %r\n%s" % (text, self.describe())) from None

    def say(self, text):
        self.p.stdin.write(text.encode())
        self.p.stdin.flush()

    def wait(self, timeout=10.0):
        timeout *= PATIENCE
        if self.poll(timeout) is None:
            raise Timeout("still running after %.0f s: %s" % (timeout, self.describe()))
        return self.returncode

    def kill(self, sig=signal.SIGKILL):
        if self.p.returncode is None:
            os.kill(self.pid, sig)

    def reap(self):
        """End the whole process group, whatever state it is in."""
        if self.p.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.poll(10)
            self.p.wait()

    def stop(self):
        if self.pidfd < 0:
            return
        self.reap()
        os.close(self.pidfd)
        self.pidfd = -1
        for f in (self.p.stdin, self.p.stdout, self.errfile):
            if f:
                with contextlib.suppress(OSError, ValueError):
                    f.close()


class Env:
    """Everything one test starts and owns: its programs, settings and statistics folder.

    Both programs run on this machine, or each on a host of its own: hosts are then those of the server
    and of the client (tests/guest/hosts.py). A test that runs in both settings takes addresses and the
    fabric from here.
    """

    def __init__(self, mode, hosts=None):
        self.mode = mode
        self.hosts = dict(zip(("server", "client"), hosts)) if hosts else {}
        # where the server is
        self.address = hosts[0].address if hosts else "127.0.0.1"
        self.address6 = hosts[0].address6 if hosts else "::1"
        # what carries a connection whose ends both have the shim
        between = FABRIC_BETWEEN_HOSTS[hosts.kind] if hosts else "rdma"
        self.fabric = between if BRIDGE else None if hosts else "shm"
        self.procs, self.closers = [], []
        self.stats = tempfile.mkdtemp(prefix="xrdma-test-", dir="/dev/shm")
        self.said = tempfile.mkdtemp(prefix="xrdma-test-tsan-") if TSAN else None
        self.env = {**EAGER, "XRDMA_STATS_DIR": self.stats, "TEST_ADDRESS": self.address,
                    "TEST_ADDRESS6": self.address6}
        if TSAN:
            self.env["TSAN_OPTIONS"] = "suppressions=%s/tests/tsan.supp log_path=%s/said" % (SOURCE, self.said)
        if self.fabric == "rdma":
            self.env.update(RDMA, XRDMA_MODULE_DIR=os.path.dirname(find(".libs/libxrdma_preload.so")))
            if not hosts:
                self.env["XRDMA_RDMA_DEVICE"] = "shm"

    def on(self, role):
        """with env.on(role): what is started, and each socket that is made, is on that program's host."""
        return self.hosts[role].inside() if role in self.hosts else contextlib.nullcontext()

    def address_of(self, role):
        return self.hosts[role].address if role in self.hosts else self.address

    def shim(self, role):
        return role is not None and self.mode in ("both", role)

    def start(self, role, argv, **kw):
        """Start a program as the "server" or the "client" of this test's mode; None: always plain."""
        kw["env"] = {**self.env, **(kw.get("env") or {})}
        with self.on(role):
            p = Proc(argv, shim=self.shim(role), **kw)
        self.procs.append(p)
        return p

    def flows(self, pid=None):
        """Every flow that xr-stat shows for this test's programs; see flows_of."""
        return flows_of({**os.environ, **self.env}, pid)

    @property
    def lifts(self):
        """A connection that is used moves to a fabric."""
        return self.mode == "both" and self.fabric is not None

    def settled(self, flow):
        """The flow is where it is to be in this mode: on the fabric when both ends have the shim, else on
        TCP, for a reason that fits."""
        if self.lifts:
            return flow["carrier"] == self.fabric
        # A connecting end waits for a call for a while.
        why = ("not-local",) if self.hosts else ("peer-not-xrdma", "young")
        return flow["carrier"] == "tcp" and flow["reason"] in why

    def counters(self, pid):
        return counters_of({**os.environ, **self.env}, pid)

    def close(self):
        for f in self.closers:
            f()
        for p in self.procs:
            p.stop()
        shutil.rmtree(self.stats, ignore_errors=True)
        if self.said:
            said = "".join(open(os.path.join(self.said, f), errors="replace").read() for f in os.listdir(self.said))
            shutil.rmtree(self.said)
            assert not said, said[:12000]


def xr_stat(env, *args):
    p = subprocess.run([find("xr-stat", "tools/xr-stat"), *args], env=env, text=True,
                       capture_output=True, timeout=10, check=False)
    assert p.returncode == 0, "xr-stat %s: %d %s" % (" ".join(args), p.returncode, p.stderr)
    return p.stdout


def counters_of(env, pid):
    """The totals of one process: {"handshake_refused": 0, ...}, and its reasons."""
    for p in json.loads(xr_stat(env, "-a", "-n", "-j"))["processes"]:
        if p["pid"] == pid:
            return p["counters"], p["reasons"]
    raise AssertionError("xr-stat does not show process %d" % pid)


def flows_of(env, pid=None):
    """Every connection that xr-stat shows, of one process or of all."""
    got = json.loads(xr_stat(env, "-a", "-n", "-j"))
    return [f for f in got["flows"] if pid in (None, f["pid"]) and f["state"].upper() != "LISTEN"]


def until(cond, timeout=5.0, what="condition", step=0.01):
    """Poll for something that has no descriptor to wait on."""
    timeout *= PATIENCE
    end = time.monotonic() + timeout
    while True:
        got = cond()
        if got:
            return got
        if time.monotonic() > end:
            raise Timeout("%s not reached within %.1f s; last: %r" % (
                what() if callable(what) else what, timeout, got))
        time.sleep(step)


# ---- what a process holds ------------------------------------------------------------------------

def fds(pid):
    """Open descriptors, by number, and what they are."""
    got = {}
    for n in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError):
            got[int(n)] = os.readlink("/proc/%d/fd/%s" % (pid, n))
    return got


def shared_maps(pid, pool=True):
    """
    Shared mappings (memfd or /dev/shm): number and bytes. pool=False: without the registered memory that is kept from
    one message to the next and given back at rest, a second (XRDMA_OPT_REST_MS) after the last traffic.
    """
    n = size = 0
    with open("/proc/%d/maps" % pid) as f:
        for line in f:
            part = line.split(None, 5)
            if len(part) == 6 and part[1][3] == "s" and (
                    part[5].startswith("/memfd:") or part[5].startswith("/dev/shm/")) and (
                    pool or not part[5].startswith("/memfd:xrdma-pool")):
                lo, hi = (int(x, 16) for x in part[0].split("-"))
                n, size = n + 1, size + hi - lo
    return n, size


def rss(pid):
    """Resident bytes."""
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_s(pid):
    """Processor seconds used so far, all threads."""
    with open("/proc/%d/stat" % pid) as f:
        part = f.read().rsplit(")", 1)[1].split()
    return (int(part[11]) + int(part[12])) / os.sysconf("SC_CLK_TCK")


def sleeps(pid):
    """How often its threads went to sleep by themselves."""
    n = 0
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/status" % (pid, task)) as f:
            n += int(f.read().split("\nvoluntary_ctxt_switches:", 1)[1].split(None, 1)[0])
    return n


def state(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def children(pid):
    got = []
    for t in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/children" % (pid, t)) as f:
            got += [int(x) for x in f.read().split()]
    return got


def left_behind(env, comm):
    """Processes of this name that programs of the test have left behind."""
    found = []
    for path in glob.glob("/proc/[0-9]*/comm"):
        with contextlib.suppress(OSError):      # it has just ended
            with open(path) as f:
                if f.read() != comm + "\n":
                    continue
            with open(path[:-4] + "environ") as f:
                if env.stats in f.read():
                    found.append(int(path.split("/")[2]))
    return found


def have(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def port_free(port):
    """Nobody listens there now (for programs that cannot be asked to choose a port)."""
    import socket
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError as e:
            assert e.errno == errno.EADDRINUSE
            return False
    return True
