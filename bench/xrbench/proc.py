# SPDX-License-Identifier: BSD-2-Clause
"""Processes of a benchmark: started pinned, timed to the nanosecond, stopped by pid."""
import atexit
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_servers = []       # Popen objects that stop_all() ends
_dirs = []


class BenchError(Exception):
    """Something a run needs did not happen; the text is for the user."""


def private_dir():
    """A directory for one server. Other users may enter it: servers drop privileges."""
    d = tempfile.mkdtemp(prefix="xrdma-bench-")
    os.chmod(d, 0o755)
    _dirs.append(d)
    return d


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_of_pid(pid):
    """CPU seconds of a live process, its ended threads included; None when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
    except OSError:
        return None


def tree(pid):
    """pid and all its live descendants."""
    pids = [pid]
    for p in pids:
        try:
            for t in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{t}/children", encoding="ascii") as f:
                    pids += [int(c) for c in f.read().split()]
        except OSError:
            pass
    return pids


def cpu_of_tree(pid):
    return sum(cpu_of_pid(p) or 0.0 for p in tree(pid))


def machine_busy():
    """CPU seconds that the whole machine has been busy, steal included."""
    with open("/proc/stat", encoding="ascii") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def _prepare(cpus):
    def run():
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    return run


def spawn(cmd, cpus=None, **kw):
    """Popen in a session of its own, so that Ctrl-C reaches us alone, and that dies with us."""
    try:
        return subprocess.Popen(cmd, stdin=subprocess.DEVNULL, start_new_session=True,
                                preexec_fn=_prepare(cpus), **kw)
    except OSError as e:
        raise BenchError(f"cannot start {cmd[0]}: {e.strerror}") from e


class Server:
    """A server process with its log; ready when its port accepts or its stdout names one."""

    def __init__(self, cmd, port=None, cpus=None, cwd=None, env=None):
        self.cmd, self.port = cmd, port
        self.log = tempfile.TemporaryFile()
        pipe = port is None
        self.p = spawn(cmd, cpus, cwd=cwd, env=env, stderr=self.log,
                       stdout=subprocess.PIPE if pipe else self.log)
        _servers.append(self)
        if pipe:
            line = self.p.stdout.readline().split()
            if len(line) != 2 or line[0] != b"port":
                raise BenchError(f"{cmd[-1]} did not start: {self.tail()}")
            self.port = int(line[1])
        else:
            self.wait_port()

    def wait_port(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.p.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(.02)
        raise BenchError(f"{' '.join(self.cmd)} does not listen: {self.tail()}")

    def tail(self):
        self.log.seek(0)
        return self.log.read()[-800:].decode(errors="replace").strip() or "(no output)"

    def alive(self):
        return self.p.poll() is None

    def cpu(self):
        return cpu_of_tree(self.p.pid)

    def stop(self):
        pids = tree(self.p.pid) if self.alive() else []
        for sig in (signal.SIGTERM, signal.SIGKILL):
            if self.alive():
                self.p.send_signal(sig)
                try:
                    self.p.wait(3)
                except subprocess.TimeoutExpired:
                    continue
        for pid in pids[1:]:    # workers outlive a killed master; they are still in our session
            try:
                if os.getsid(pid) == self.p.pid:
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if self.p.stdout:
            self.p.stdout.close()
        self.log.close()
        if self in _servers:
            _servers.remove(self)


class Done:
    """What a client left behind."""

    def __init__(self, out, cpu, seconds):
        self.out, self.cpu, self.seconds = out, cpu, seconds


def _ended(pid, timeout):
    """Sleeps until pid has ended, without waking up in between: we share its cores."""
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], max(0, timeout))[0])
    finally:
        os.close(fd)


def run(cmd, cpus=None, timeout=60, during=None, ok=(0,)):
    """Runs a client to its end. during() is called now and then until it returns true."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        t0 = time.monotonic()
        p = spawn(cmd, cpus, stdout=out, stderr=err)
        try:
            while during and not _ended(p.pid, .15) and not during():
                pass
            if not _ended(p.pid, t0 + timeout - time.monotonic()):
                raise BenchError(f"{' '.join(cmd)} did not end within {timeout:.0f} s")
            _, status, ru = os.wait4(p.pid, 0)
        except BaseException:
            p.kill()
            p.wait()
            raise
        p.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - t0
        out.seek(0)
        err.seek(0)
        text, errors = out.read(), err.read().decode(errors="replace").strip()
    if p.returncode not in ok:
        raise BenchError(f"{' '.join(cmd)} ended with status {p.returncode}: "
                         f"{errors[-600:] or text[-600:].decode(errors='replace')}")
    return Done(text, ru.ru_utime + ru.ru_stime, seconds)


def need(*programs):
    for p in programs:
        if not shutil.which(p):
            raise BenchError(f"{p} is not installed")


def stop_all():
    for s in list(_servers):
        try:
            s.stop()
        except OSError:
            pass
    while _dirs:
        shutil.rmtree(_dirs.pop(), ignore_errors=True)


def _on_signal(sig, _frame):
    raise KeyboardInterrupt(sig)


def install_cleanup():
    atexit.register(stop_all)
    for s in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, _on_signal)
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
