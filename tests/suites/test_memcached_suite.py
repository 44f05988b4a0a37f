# SPDX-License-Identifier: BSD-2-Clause
"""memcached's own tests in Perl; the program is the one that is installed."""
import os
import re

import pytest

import harness
import sources
import suite

pytestmark = pytest.mark.timeout(900)

# tests, connections that must have moved: most files have one or two
GROUPS = {
    "commands": ("getset cas noreply metaget incrdecr flags touch getandtouch issue_3 issue_70".split(), 3),
    "connections": ("line-lengths watcher stats-conns idle-timeout quit refhang bogus-commands multiversioning".split(), 2),
}


@pytest.fixture(scope="module")
def tree():
    for name in ("memcached", "perl"):
        if not harness.have(name):
            pytest.skip("%s is not installed" % name)
    return sources.memcached()


def results(tree, tmp, tests, path=(), **kw):
    """A failing or missing line of a file is one result of its own."""
    loop = ('for t; do perl t/$t.t >$D/out 2>$D/err; printf "\n== %s %s\n" $t $?; cat $D/out; '
            'sed "s/^/# /" $D/err; done')
    r = suite.run(["sh", "-c", loop, "sh", *tests], cwd=tree, timeout=600, **kw,
                  env={"D": str(tmp), "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]])})
    r.results = {}
    for name, rc, body in re.findall(r"^== (\S+) (\d+)$\n(.*?)(?=^== |\Z)", r.out, re.M | re.S):
        skipped = re.search(r"^1\.\.0", body, re.M)
        r.results[name] = "skip" if skipped else "pass" if rc == "0" else "fail"
        for n in re.findall(r"^not ok (\d+)", body, re.M):
            r.results["%s/%s" % (name, n)] = "fail"
    return r


def again(tree, tmp):
    return lambda some: results(tree, tmp, sorted({t.split("/")[0] for t in some}), fabric=False).results


@pytest.mark.parametrize("group", GROUPS)
def test_memcached(group, tree, tmp_path):
    tests, least = GROUPS[group]
    got = results(tree, tmp_path, tests)
    assert set(tests) <= set(got.results)
    suite.judge("memcached", again(tree, tmp_path), got, least)


@pytest.mark.parametrize("end", suite.ENDS)
def test_one_end(end, tree, tmp_path):
    """The server alone is under xrdma, or its clients are."""
    tests = "noreply incrdecr line-lengths refhang bogus-commands quit flags".split()
    suite.one_end(end, "memcached", tmp_path / "memcached")
    got = results(tree, tmp_path, tests, fabric=end == "client", path=[tmp_path])
    assert set(tests) <= set(got.results)
    suite.judge_one_end("memcached", again(tree, tmp_path), got, 3)


@suite.whole
@pytest.mark.parametrize("part", range(4))
def test_whole(part, tree, tmp_path):
    """Every fourth at a time: they wait much."""
    tests = sorted(p.stem for p in (tree / "t").glob("*.t") if "ssl" not in p.name)[part::4]
    plain = results(tree, tmp_path, tests, fabric=False).results
    suite.judge("memcached", again(tree, tmp_path), results(tree, tmp_path, tests), 5, plain)
