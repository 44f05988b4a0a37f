# SPDX-License-Identifier: BSD-2-Clause
"""MariaDB: rows go in and come back as they were, sysbench's transactions end without an error."""
import os
import re
import shutil
import subprocess

import pytest

import app

pytestmark = pytest.mark.timeout(180)

ALL = os.environ.get("XRDMA_SUITES") == "all"
SMALL = ["--no-defaults", "--innodb-buffer-pool-size=24M", "--innodb-log-file-size=8M", "--innodb-use-native-aio=0",
         "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin", "--performance-schema=0"]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A fresh database, made once."""
    d = tmp_path_factory.mktemp("mariadb") / "data"
    p = subprocess.run([app.need("mariadb-install-db"), *SMALL, "--datadir=%s" % d, "--user=root", "--skip-test-db",
                        "--auth-root-authentication-method=normal"], stdin=subprocess.DEVNULL, capture_output=True,
                       timeout=120, check=False)
    assert p.returncode == 0, p.stdout + p.stderr
    return d


@pytest.mark.modes(*(("plain", "server", "client", "both") if ALL else ("plain", "both")))
def test_mariadb(env, tmp_path, empty):
    server, client, sysbench = (app.need(x) for x in ("mariadbd", "mariadb", "sysbench"))
    shutil.copytree(empty, tmp_path / "data")
    p, port = app.serve(env, lambda port: [
        server, *SMALL, "--datadir=%s" % (tmp_path / "data"), "--user=root", "--port=%d" % port,
        "--bind-address=" + env.address, "--socket=%s" % (tmp_path / "s"), "--skip-name-resolve",
        "--max-allowed-packet=32M"])

    def sql(text, timeout=60):
        return app.run(env, [client, "--no-defaults", "--protocol=tcp", "-h", env.address, "-P", port, "-u", "root",
                             "--max-allowed-packet=32M", "-N", "-B"], stdin=text.encode(), timeout=timeout)

    # rows of any size, the largest beyond every buffer, by one connection and back by another
    rows = [app.blob(n, n + 1) for n in (*range(0, 4000, 37), 70_001, 1_000_003, 6_000_000)]
    sql("create database t; create table t.r (i int primary key, b longblob) engine=innodb;\n" + "".join(
        "insert into t.r values (%d, x'%s');\n" % (i, b.hex()) for i, b in enumerate(rows)))
    back = sql("select hex(b) from t.r order by i;\n").decode().split("\n")[:-1]
    assert [app.sha(bytes.fromhex(x)) for x in back] == [app.sha(b) for b in rows]

    sql("create database sbtest;\n")
    at = [sysbench, "oltp_read_write", "--db-driver=mysql", "--mysql-host=" + env.address, "--mysql-port=%d" % port,
          "--mysql-user=root", "--tables=2", "--table-size=500", "--threads=4"]
    app.run(env, [*at, "prepare"])
    run = env.start("client", [*at, "--time=%d" % (20 if ALL else 3), "run"])
    app.check_live(env, port, share=0.3)
    out = app.finish(run).decode()
    assert run.returncode == 0, run.describe() + out
    assert int(re.search(r"transactions: +(\d+)", out)[1]) > 20, out
    # deadlocks are retried and counted; a lost connection is neither
    assert re.search(r"reconnects: +0 ", out), out
    assert sql("check table sbtest.sbtest1, sbtest.sbtest2, t.r;\n").count(b"\tOK\n") == 3
    assert sql("select count(*) from sbtest.sbtest1;\n") == b"500\n"
    if env.lifts:
        assert env.counters(p.pid)[0]["flows_upgraded"] >= 4
