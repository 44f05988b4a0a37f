# SPDX-License-Identifier: BSD-2-Clause
"""Every test runs four times: kernel TCP at both ends, the shim at one end, at the other, at both.

The plain run is the specification: a test that fails there is wrong. --modes=plain,both limits the
runs; it is for working on the tests, not for results.
"""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "e2e"))

import harness  # noqa: E402
import shell  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--modes", default=",".join(harness.MODES))


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        want = metafunc.config.getoption("--modes").split(",")
        only = metafunc.definition.get_closest_marker("modes")
        metafunc.parametrize("mode", [m for m in (only.args if only else harness.MODES) if m in want])


@pytest.fixture
def env(mode):
    """The test's own programs and settings; everything is stopped and removed afterwards."""
    e = harness.Env(mode)
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
