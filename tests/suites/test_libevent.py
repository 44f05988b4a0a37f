# SPDX-License-Identifier: BSD-2-Clause
"""libevent's regress, with each of its ways to wait."""
import re

import pytest

import sources
import suite

pytestmark = pytest.mark.timeout(900)

WAYS = {
    "epoll": {},
    "changelist": {"EVENT_EPOLL_USE_CHANGELIST": "yes"},
    "poll": {"EVENT_NOEPOLL": "yes"},
    "select": {"EVENT_NOEPOLL": "yes", "EVENT_NOPOLL": "yes"},
}
# What moves bytes over connections; the rest is timers, signals, buffers and names.  Not those that wait
# for time-outs of many seconds.
PARTS = {"streams": ["bufferevent/..", "listener/.."],
         "http": ["http/..", *(":http/cancel_" + n for n in (
             "inactive_server", "by_host_inactive_server", "by_host_no_ns", "by_host_no_ns_inactive_server",
             "by_host_ns_timeout", "by_host_ns_timeout_inactive_server"))]}
WORDS = {"OK": "pass", "SKIPPED": "skip", "DISABLED": "skip"}


@pytest.fixture(scope="module")
def regress():
    return sources.libevent() / "test/regress"


def results(regress, tests, way, tmp, **kw):
    r = suite.run([regress, *tests], cwd=tmp, timeout=600, env=WAYS[way], **kw)
    r.results = {}
    for name, body in re.findall(r"^(\w+/\w+): (.*?)(?=^\w+/\w+: |^\d+ tests|\Z)", r.out, re.M | re.S):
        word = re.search(r"\b(OK|SKIPPED|DISABLED|FAILED)\b", body)
        r.results[name] = WORDS.get(word.group(1) if word else "", "fail")
    return r


def compare(regress, tests, way, tmp, least):
    plain = results(regress, tests, way, tmp, fabric=False).results if suite.ALL else None
    got = results(regress, tests, way, tmp)
    suite.judge("libevent", lambda some: results(regress, some, way, tmp, fabric=False).results, got, least, plain)


@pytest.mark.parametrize("part", PARTS)
def test_regress(part, regress, tmp_path):
    compare(regress, PARTS[part], "epoll", tmp_path, 4)


@pytest.mark.parametrize("way", ["poll", "select"])
def test_streams_by(way, regress, tmp_path):
    compare(regress, PARTS["streams"], way, tmp_path, 4)


@suite.whole
@pytest.mark.parametrize("way", WAYS)
def test_whole(way, regress, tmp_path):
    compare(regress, [], way, tmp_path, 20)
