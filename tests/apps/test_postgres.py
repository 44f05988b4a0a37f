# SPDX-License-Identifier: BSD-2-Clause
"""PostgreSQL over TCP: pgbench, bulk both ways, and a standby that streams what the primary writes."""
import glob
import os
import pwd
import shutil
import signal
import tempfile
import time

import pytest

import app
import harness

pytestmark = pytest.mark.timeout(120)

SETTINGS = """
listen_addresses = '%s'
unix_socket_directories = ''
fsync = off
ssl = off
autovacuum = off
wal_level = replica
max_wal_senders = 4
hot_standby = on
shared_buffers = 16MB
port = %d
"""


def programs():
    """The newest installed version."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"),
                   key=lambda p: int(p.split("/")[4]) if p.split("/")[4].isdigit() else 0)
    if not found:
        pytest.skip("postgresql is not installed")
    return os.path.dirname(found[-1])


class Cluster:
    """Servers and clients of one user, who is not root: PostgreSQL refuses to be that."""

    def __init__(self, env):
        self.env, self.bin = env, programs()
        self.top = tempfile.mkdtemp(prefix="xrdma-pg-")
        env.closers.append(self.end)
        self.servers, self.where, self.user = [], {}, None
        if os.geteuid() == 0:
            self.user = pwd.getpwnam("postgres")
            for d in (self.top, env.stats):
                os.chown(d, self.user.pw_uid, self.user.pw_gid)

    def end(self):
        """Backends have sessions of their own: their postmaster ends them."""
        for p in self.servers:
            p.kill(signal.SIGQUIT)
        for p in self.servers:
            p.wait(20)
        shutil.rmtree(self.top, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.top, *names)

    def make_primary(self):
        self.run("initdb", "-A", "trust", "-U", "postgres", "-N", "--no-instructions", "--locale=C", "-D", self.path("primary"),
                 role=None)
        with open(self.path("primary", "pg_hba.conf"), "a") as f:
            f.write("host all all all trust\nhost replication all all trust\n")
        return self.serve("primary", "server")

    def become(self):
        if self.user:
            os.setgroups([])
            os.setgid(self.user.pw_gid)
            os.setuid(self.user.pw_uid)

    def run(self, name, *args, role="client", **kw):
        return app.run(self.env, [os.path.join(self.bin, name), *args], role, preexec=self.become, cwd=self.top, **kw)

    def serve(self, name, role):
        def make(port):
            with open(self.path(name, "postgresql.conf"), "w") as f:
                f.write(SETTINGS % (self.env.address_of(role), port))
            return [os.path.join(self.bin, "postgres"), "-D", self.path(name)]
        p, port = app.serve(self.env, make, role=role, preexec=self.become, cwd=self.top)
        self.servers.append(p)
        self.where[port] = self.env.address_of(role)
        harness.until(lambda: self.answers(port), 20, "the server answers", 0.1)
        return port

    def answers(self, port):
        p = self.env.start("client", [os.path.join(self.bin, "pg_isready"), "-q", *self.at(port)], preexec=self.become)
        p.wait(10)
        return p.returncode == 0

    def at(self, port):
        return ["-h", self.where[port], "-p", port]

    def sql(self, port, text, **kw):
        return self.run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres", *self.at(port),
                        "-c", text, **kw).decode().strip()


SUMS = """select md5(string_agg(t::text, '|' order by aid)) from pgbench_accounts t;
select md5(string_agg(t::text, '|' order by tid)) from pgbench_tellers t;
select count(*), sum(delta) from pgbench_history;
select md5(string_agg(t::text, '|' order by n)) from bulk t;"""


@pytest.mark.modes("plain", "both")
def test_postgres_with_a_standby(env):
    """What was written by many clients is found at the standby, row by row."""
    c = Cluster(env)
    env.env.update(PGUSER="postgres", PGSSLMODE="disable", PGGSSENCMODE="disable")
    port = c.make_primary()
    c.run("pgbench", "-i", "-q", "-s", "1", "-d", "postgres", *c.at(port))
    c.run("pg_basebackup", "-c", "fast", "-R", "-D", c.path("standby"), *c.at(port))
    second = c.serve("standby", "client")
    harness.until(lambda: c.sql(port, "select state from pg_stat_replication") == "streaming", 20, "streaming", 0.1)

    # bulk in, while transactions run
    rows = b"".join(b"%d\t%s\n" % (i, app.sha(b"%d" % i).encode() * 3) for i in range(20000))
    c.sql(port, "create table bulk (n int primary key, what text)")
    p = env.start("client", [os.path.join(c.bin, "pgbench"), "-n", "-c", "6", "-j", "2", "-M", "prepared", "-t",
                             app.load(300), "-d", "postgres", *c.at(port)], preexec=c.become)
    app.check_live(env, port)
    c.sql(port, "copy bulk from stdin", stdin=rows)
    text = app.finish(p, 60).decode()
    assert p.returncode == 0 and "number of failed transactions: 0" in text, text
    # and out
    assert app.sha(c.sql(port, "copy (select * from bulk order by n) to stdout").encode() + b"\n") == app.sha(rows)

    want = c.sql(port, "select pg_current_wal_lsn()")
    harness.until(lambda: c.sql(second, "select pg_last_wal_replay_lsn() >= '%s'" % want) == "t", 20, "replayed", 0.1)
    assert c.sql(second, SUMS) == c.sql(port, SUMS)
    assert int(c.sql(second, "select count(*) from pgbench_history")) == 6 * app.load(300)
    if env.lifts:
        # the stream to the standby is a connection between two servers
        def stream():
            return [f for f in env.flows() if f["program"] == "postgres" and f["peer_port"] == port]
        # between hosts it takes a thread, which there is none for in a handler: PostgreSQL 15 forks its receiver there
        harness.until(lambda: any(env.settled(f) or env.fabric == "rdma" and f["reason"] == "limit-threads" for f in stream()),
                      10, lambda: "the stream on its fabric: %r" % stream())


@pytest.mark.modes("both")
@pytest.mark.fabric
def test_backends_are_held_as_their_postmaster_is(env):
    """xr-stat --retreat before there is any connection: each backend is forked later."""
    c = Cluster(env)
    env.env.update(PGUSER="postgres", PGSSLMODE="disable", PGGSSENCMODE="disable")
    port = c.make_primary()

    with open(c.path("one.sql"), "w") as f:
        f.write("select 1;\n")

    def backends():
        """(carrier, reason) of the server's ends, under load."""
        p = env.start("client", [os.path.join(c.bin, "pgbench"), "-n", "-c", "3", "-T", "1", "-f", c.path("one.sql"),
                                 "-d", "postgres", *c.at(port)], preexec=c.become)
        got = set()
        while p.poll() is None:
            got |= {(f["carrier"], f["reason"]) for f in env.flows()
                    if f["local_port"] == port and f["state"] == "ESTAB" and f["reason"] != "young"}
            time.sleep(0.02)
        assert p.returncode == 0, p.describe()
        return got
    harness.xr_stat({**os.environ, **env.env}, "--retreat")
    assert backends() == {("tcp", "operator")}
    harness.xr_stat({**os.environ, **env.env}, "--return")
    assert env.fabric in {carrier for carrier, _ in backends()}
