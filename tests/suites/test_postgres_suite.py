# SPDX-License-Identifier: BSD-2-Clause
"""PostgreSQL's own regression tests (installcheck) over TCP: the server and the programs are those that are installed."""
import glob
import os
import re
import shutil
import tempfile

import pytest

import sources
import suite

pytestmark = pytest.mark.timeout(1500)

# Those that move bulk, or end a session in the middle of something, and what these need before them.
PART = ("test_setup copy copy2 copyselect copydml create_index portals prepare async largeobject plpgsql prepared_xacts temp "
        "advisory_lock psql").split()


@pytest.fixture
def postgres():
    """(programs, source tree with its modules)"""
    bins = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda p: int(p.split("/")[4]))
    if not bins:
        pytest.skip("postgresql is not installed")
    tree = sources.postgres(bins[-1].split("/")[4])
    return os.path.dirname(bins[-1]), tree


def results(postgres, tests, standby=0, **kw):
    # PostgreSQL refuses root, and who it runs as cannot enter the cache or a directory of pytest's
    top, (programs, tree) = tempfile.mkdtemp(prefix="xrdma-pg-"), postgres
    try:
        os.chmod(top, 0o777)
        for name in ("src/test/regress", "modules"):
            shutil.copytree(tree / name, os.path.join(top, "tree", name))
        shutil.copy(os.path.join(suite.HERE, "postgres.sh"), top)
        r = suite.run(["bash", "postgres.sh", programs, os.path.join(top, "tree"), top, standby, *tests], cwd=top,
                      nobody=True, timeout=1200, **kw)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    r.results = {}
    for name, word in re.findall(r"^(?:test |     )(\S+) +\.\.\. (ok|FAILED|failed)", r.out, re.M):
        r.results[name] = "pass" if word == "ok" else "fail"
    return r


def again(postgres, tests):
    return lambda _: results(postgres, tests, fabric=False).results


def test_a_part(postgres):
    plain = results(postgres, PART, fabric=False).results if suite.ALL else None
    got = results(postgres, PART)
    assert set(got.results) == set(PART), got.out[-3000:]
    suite.judge("postgres", again(postgres, PART), got, 15, plain)


@suite.whole
def test_whole(postgres):
    """All of them, up to ten at once, while a standby follows."""
    plain = results(postgres, [], standby=1, fabric=False).results
    got = results(postgres, [], standby=1)
    assert len(got.results) > 180 and got.results["standby"] == "pass", got.out[-3000:]
    suite.judge("postgres", again(postgres, []), got, 150, plain)
