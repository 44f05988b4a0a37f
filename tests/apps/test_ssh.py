# SPDX-License-Identifier: BSD-2-Clause
"""sshd closes every descriptor at its start, forks, drops rights and installs a seccomp filter."""
import getpass
import os

import pytest

import app

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def ssh(env, tmp_path):
    sshd, keygen = app.need("sshd"), app.need("ssh-keygen")
    made = False
    if os.geteuid() == 0 and not os.path.isdir("/run/sshd"):
        os.makedirs("/run/sshd", 0o755, exist_ok=True)
        made = True
    os.chmod(tmp_path, 0o700)
    for name in ("host", "user"):
        app.run(env, [keygen, "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], role=None)
    (tmp_path / "keys").write_bytes((tmp_path / "user.pub").read_bytes())

    def make(port):
        (tmp_path / "sshd_config").write_text(
            "ListenAddress %s:%d\nHostKey %s/host\nPidFile none\nAuthorizedKeysFile %s/keys\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nPrintMotd no\n"
            "Subsystem sftp internal-sftp\n" % (env.address, port, tmp_path, tmp_path))
        return [sshd, "-D", "-e", "-f", tmp_path / "sshd_config"]
    _, port = app.serve(env, make)
    opts = ["-F", "none", "-i", tmp_path / "user", "-o", "StrictHostKeyChecking=no", "-o",
            "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"]
    yield env, opts, port
    if made:
        try:
            os.rmdir("/run/sshd")
        except OSError:
            pass  # another test run uses it too


def test_ssh_cat(ssh, tmp_path):
    """A file out, a file in, and the exit status."""
    env, opts, port = ssh
    data = app.blob(10_000_000)
    (tmp_path / "f").write_bytes(data)
    base = [app.need("ssh"), *opts, "-p", port, "%s@%s" % (getpass.getuser(), env.address)]
    assert app.sha(app.run(env, [*base, "cat %s/f" % tmp_path])) == app.sha(data)
    app.run(env, [*base, "cat > %s/g" % tmp_path], stdin=data)
    assert app.sha((tmp_path / "g").read_bytes()) == app.sha(data)
    p = env.start("client", [*base, "exit 7"])
    app.finish(p)
    assert p.returncode == 7


def test_scp(ssh, tmp_path):
    env, opts, port = ssh
    data = app.blob(5_000_000)
    (tmp_path / "f").write_bytes(data)
    app.run(env, [app.need("scp"), *opts, "-P", port, "%s@%s:%s/f" % (
        getpass.getuser(), env.address, tmp_path), tmp_path / "copy"])
    assert app.sha((tmp_path / "copy").read_bytes()) == app.sha(data)
