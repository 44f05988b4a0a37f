# SPDX-License-Identifier: BSD-2-Clause
"""Every test runs four times: kernel TCP at both ends, the shim at one end, at the other, at both.

The plain run is the specification: a test that fails there is wrong. --modes=plain,both limits the
runs; it is for working on the tests, not for results.

--hosts=rxe, siw or none puts the server and the client on two hosts that have such RDMA devices, or none:
see guest/README.md. Left out are then tests that have no server and client, that are marked one_host,
and, unless --bridge is given, that are marked fabric. With --bridge connections between such hosts are carried
by their devices, and without --hosts those of this host by the same module over the shm device.
"""
import os
import sys

import pytest

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "e2e"), os.path.join(os.path.dirname(__file__), "guest")]

import harness  # noqa: E402
import hosts  # noqa: E402
import shell  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--modes", default=",".join(harness.MODES))
    parser.addoption("--hosts", choices=hosts.DEVICES)
    parser.addoption("--mtu", type=int, default=9000)
    parser.addoption("--bridge", action="store_true")


def pytest_configure(config):
    harness.BRIDGE = config.getoption("--bridge")


def pytest_collection_modifyitems(config, items):
    for i in items:
        limit = i.get_closest_marker("timeout")
        if limit and harness.PATIENCE > 1:
            i.add_marker(pytest.mark.timeout(harness.PATIENCE * limit.args[0]), append=False)
    if harness.TSAN:
        out = [i for i in items if not i.get_closest_marker("tsan")]
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in out]
    if not config.getoption("--hosts"):
        return
    out = [i for i in items if "env" not in i.fixturenames or i.get_closest_marker("one_host") or (
        i.get_closest_marker("fabric") and not (
            config.getoption("--bridge") and harness.FABRIC_BETWEEN_HOSTS[config.getoption("--hosts")]))]
    config.hook.pytest_deselected(items=out)
    items[:] = [i for i in items if i not in out]


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        want = metafunc.config.getoption("--modes").split(",")
        only = metafunc.definition.get_closest_marker("modes")
        metafunc.parametrize("mode", [m for m in (only.args if only else harness.MODES) if m in want])


@pytest.fixture(scope="session")
def two_hosts(request):
    """The server's host and the client's, with --hosts; else None."""
    kind = request.config.getoption("--hosts")
    if not kind:
        yield None
        return
    with hosts.Hosts(2, kind, request.config.getoption("--mtu")) as pair:
        yield pair


@pytest.fixture
def env(mode, two_hosts):
    """The test's own programs and settings; everything is stopped and removed afterwards."""
    e = harness.Env(mode, two_hosts)
    try:
        yield e
    finally:
        e.close()


@pytest.fixture
def pair(env):
    """Two programs with one fresh connection."""
    return shell.Pair(env)


@pytest.fixture
def live(pair):
    """Two programs with one connection that has been used, and is on shm when both have the shim."""
    return pair.upgrade()
