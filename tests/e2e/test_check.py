# SPDX-License-Identifier: BSD-2-Clause
"""xrdma-run --check promises nothing that would not come true."""
import contextlib
import os
import resource
import shutil
import socket
import subprocess

import pytest

from harness import Proc, find, xr_stat
from test_tools import HELLO, clean_env, run  # noqa: F401  (run is a fixture)

SERVER = ("import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
          "print(s.getsockname()[1], flush=True); sys.stdin.read()")


@pytest.fixture
def server(run, tmp_path):
    """A server under xrdma; gives HOST:PORT."""
    with contextlib.ExitStack() as stack:
        def go(options=(), preexec=None, **env):
            p = Proc(["/usr/bin/python3", "-c", SERVER], shim=True, options=options, preexec=preexec,
                     env={**clean_env(tmp_path), "XRDMA_CONF": str(run.conf), **env})
            stack.callback(p.stop)
            go.pid = p.pid
            return "127.0.0.1:%s" % p.line()
        yield go


def says(p, reason, *phrases):
    assert p.returncode == 1, p.stdout
    assert "would stay on TCP: %s (" % reason in p.stdout.splitlines()[-1]
    for phrase in phrases:
        assert phrase in p.stdout, p.stdout


@pytest.mark.parametrize("option, reason", [
    ("--enabled=no", "disabled"), ("--fabric=none", "disabled"), ("--max-flows=0", "limit-flows"),
    ("--max-memory=0", "limit-memory"), ("--max-memory=100K", "limit-memory")])
def test_settings_that_keep_everything_on_tcp(run, option, reason):
    name, value = option[2:].replace("-", "_").split("=")
    says(run(option, "--check"), reason, "no    upgrades         switched off: %s = %s\n" % (name, value))


def low(**limits):
    def apply():
        for name, n in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (n, n))
    return apply


@pytest.mark.parametrize("limits, reason", [({"NOFILE": 100}, "limit-fds"), ({"FSIZE": 1 << 20}, "limit-memory"),
                                            ({"AS": 40 << 20}, "limit-memory")])
def test_limits(run, tmp_path, limits, reason):
    p = subprocess.run([find("xrdma-run", "tools/xrdma-run"), "--check"], text=True, capture_output=True,
                       env={**clean_env(tmp_path), "XRDMA_CONF": str(run.conf)}, preexec_fn=low(**limits),
                       check=False)
    says(p, reason)


@pytest.mark.parametrize("options, why", [(["--enabled=no"], "disabled"), (["--max-flows=0"], "limit-flows"),
                                          (["--max-memory=0"], "limit-memory")])
def test_a_server_that_keeps_to_tcp(run, server, options, why):
    where = server(options)
    says(run("--check", where), "peer-not-xrdma", "runs under xrdma and keeps to TCP: %s\n" % why)
    # what it publishes need not be there
    where = server([*options, "--stats=no"])
    says(run("--check", where), "peer-not-xrdma", "runs under xrdma and keeps to TCP: %s\n" % why)


def test_a_server_without_descriptors(run, server):
    says(run("--check", server(preexec=low(NOFILE=100))), "peer-not-xrdma", "keeps to TCP: limit-fds\n")


def test_a_server_that_an_operator_holds(run, server, tmp_path):
    where = server()
    env = {**clean_env(tmp_path), "XRDMA_CONF": str(run.conf)}
    assert run("--check", where).returncode == 0
    xr_stat(env, "--retreat", "--pid=%d" % server.pid)
    says(run("--check", where), "peer-not-xrdma", "keeps to TCP: operator\n")
    xr_stat(env, "--return")
    assert run("--check", where).returncode == 0


def test_rules_of_either_end(run, server):
    run.conf.write_text("[rule]\nrole = server\nprogram = python3*\naction = tcp\n")
    where = server()
    says(run("--check", where), "peer-not-xrdma", "no    rule             as its server: the one of line 1 matches: tcp")
    run.conf.write_text("[rule]\nrole = client\nprogram = sh\naction = tcp\n")
    says(run("--check=" + where, "/bin/sh"), "rule", "as its client: the one of line 1 matches: tcp")
    assert run("--check=" + where, "/bin/true").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_server_that_cannot_be_looked_at(run, server, tmp_path):
    where = server()
    for d in (tmp_path, *list(tmp_path.parents)[:2]):
        d.chmod(0o755)
    p = subprocess.run([find("xrdma-run", "tools/xrdma-run"), "--check", where], text=True,
                       capture_output=True, user=65534, env={**clean_env(tmp_path), "XRDMA_STATS": "no",
                                                             "XRDMA_CONF": str(run.conf)}, check=False)
    assert "not ours to see" in p.stdout and p.stdout.endswith("if the server runs under xrdma.\n"), p


def test_programs_that_would_not_be_started(run, tmp_path):
    p = run("--check", "nonesuch")
    assert p.returncode == 1
    assert p.stdout.endswith("\n'nonesuch' would not be started: it is not found (exit status 127).\n")
    static = tmp_path / "static"
    built = subprocess.run(["gcc", "-static", "-o", static, "-x", "c", "-"], input=HELLO,
                           capture_output=True, check=False)
    if built.returncode:
        pytest.skip("no static C library")
    refused = [static]
    if os.geteuid() == 0 and not os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        setuid = tmp_path / "setuid"
        shutil.copy("/bin/true", setuid)
        os.chown(setuid, 65534, -1)
        setuid.chmod(0o4755)
        refused.append(setuid)
    for path in refused:
        p = run("--check", path)
        assert p.returncode == 1 and "'%s' would not be started (exit status 126)" % path in p.stdout
        assert run(path).returncode == 126


def test_a_bad_endpoint_is_told_first(run):
    for bad in ("host:0", "127.0.0.1:65536", ":80", "nonesuch.invalid:80"):
        p = run("--check=" + bad)
        assert (p.returncode, p.stdout) == (125, "") and p.stderr.count("\n") == 1, p


def test_an_object_that_cannot_be_named(run, tmp_path):
    blank = tmp_path / "a b.so"
    shutil.copy(find(".libs/libxrdma_preload.so"), blank)
    says(run("--preload=%s" % blank, "--check"), "peer-not-xrdma", "LD_PRELOAD cannot hold")


def test_a_free_port_is_refused(run):
    with socket.create_server(("127.0.0.1", 0)) as s:
        where = "127.0.0.1:%d" % s.getsockname()[1]
    p = run("--check", where)
    assert p.returncode == 1 and p.stdout.endswith("would be refused: nobody listens there.\n")
