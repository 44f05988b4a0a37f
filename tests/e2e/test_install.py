# SPDX-License-Identifier: BSD-2-Clause
"""What "make install" leaves is what the documents name, and works from there."""
import os
import re
import subprocess

import pytest

import harness

pytestmark = [pytest.mark.skipif(harness.IN_GUEST or not os.path.exists(os.path.join(harness.build_dir(), "Makefile")),
                                 reason="no build directory"), pytest.mark.timeout(180)]
PREFIX = "/usr/local"

BOTH_ENDS = """
import json, os, socket, subprocess, sys
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
d = s.accept()[0]
for i in range(200):
    c.sendall(b"%100d" % i)
    assert d.recv(100, socket.MSG_WAITALL) == b"%100d" % i
    d.sendall(b"x")
    c.recv(1)
p = subprocess.run([sys.argv[1], "-anj", "--pid=%d" % os.getpid()], stdout=-1, check=True)
print(*[f["carrier"] for f in json.loads(p.stdout)["flows"] if f["peer_port"]])
"""


def test_install(tmp_path):
    """One test, since it takes its time."""
    p = subprocess.run(["make", "-s", "-C", harness.build_dir(), "install", "DESTDIR=%s" % tmp_path, "prefix=" + PREFIX],
                       timeout=160, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert p.returncode == 0, p.stdout
    root = str(tmp_path) + PREFIX
    all_is_there(root)
    the_library_by_its_bare_name(root, tmp_path)
    the_compiler_finds_it(root, tmp_path)


def all_is_there(root):
    for name in ("bin/xrdma-run", "bin/xr-stat", "bin/xr-ping", "bin/xr-trace", "lib/libxrdma.so", "lib/libxrdma_preload.so",
                 "include/xrdma.h", "lib/pkgconfig/xrdma.pc", *("share/man/man%s/%s.%s" % (n, page, n) for page, n in (
                     ("xrdma-run", 1), ("xr-stat", 1), ("xr-ping", 1), ("xr-trace", 1), ("xrdma.conf", 5), ("xrdma", 7),
                     ("xrdma-protocol", 7), ("xrdma_send_msg", 3), ("xrdma_polling", 3)))):
        assert os.path.exists(os.path.join(root, name)), name
    # a version, by which the loader finds it and a later one stands beside it
    assert re.fullmatch(r"libxrdma\.so\.\d+\.\d+\.\d+", os.path.basename(os.path.realpath(root + "/lib/libxrdma.so")))


def the_library_by_its_bare_name(root, tmp_path):
    """Without the wrapper, where the loader looks."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("XRDMA_")}
    env.update(LD_LIBRARY_PATH=root + "/lib", LD_PRELOAD="libxrdma_preload.so", XRDMA_STATS_DIR=str(tmp_path),
               XRDMA_UPGRADE_TURNS="1")
    p = subprocess.run(["/usr/bin/python3", "-c", BOTH_ENDS, root + "/bin/xr-stat"], env=env, text=True, timeout=60,
                       capture_output=True, check=True)
    assert (p.stdout, p.stderr) == ("shm shm\n", "")


def the_compiler_finds_it(root, tmp_path):
    """By xrdma.pc; the program finds the library when it runs."""
    top = root[:-len(PREFIX)]
    env = {**os.environ, "PKG_CONFIG_PATH": root + "/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": top}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "xrdma"], env=env, text=True, capture_output=True,
                           check=True).stdout.split()
    assert "-lxrdma" in flags
    subprocess.run(["cc", "-o", tmp_path / "client", os.path.join(harness.SOURCE, "examples/echo-client.c"), *flags],
                   check=True, timeout=60)
    p = subprocess.run([tmp_path / "client", "nobody.%d" % os.getpid(), "text"], text=True, capture_output=True,
                       env={**os.environ, "LD_LIBRARY_PATH": root + "/lib"}, timeout=20, check=False)
    assert (p.returncode, p.stderr) == (1, "client: Connection refused\n"), p
