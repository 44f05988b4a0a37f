# SPDX-License-Identifier: BSD-2-Clause
"""Stored cases, then a million operations, against kernel TCP.

A script that fails is stored below the build folder and runs first the next time, so that a second
try does not hide it behind another seed.
"""
import glob
import os
import subprocess

import pytest

import harness

HERE = os.path.dirname(os.path.realpath(__file__))
CASES = sorted(glob.glob(os.path.join(HERE, "cases", "*.case")))
OPERATIONS = int(os.environ.get("ORACLE_OPERATIONS", "1000000"))
SEED = os.environ.get("ORACLE_SEED", "")  # else a fresh one, which the run prints


def oracle(*args, timeout=110):
    """What the oracle printed; it must have found nothing."""
    prog = harness.find("tests/oracle/xroracle")
    p = subprocess.run([prog, *args], text=True, capture_output=True, timeout=timeout, check=False)
    print(p.stdout)
    assert p.returncode == 0, "%s\n%s" % (p.stdout[-8000:], p.stderr[-4000:])
    return p.stdout


def failed_before():
    folder = os.path.join(harness.build_dir(), "tests", "oracle", "failed")
    os.makedirs(folder, exist_ok=True)
    return folder, sorted(glob.glob(os.path.join(folder, "*.case")))


@pytest.mark.parametrize("case", CASES, ids=lambda c: os.path.basename(c)[:-5])
def test_case(case):
    oracle("--replay", case, "--times", "3")


def test_plain_tcp_agrees_with_itself():
    """Else the oracle asks for what TCP does not promise."""
    oracle("--ops", "50000", "--mode", "mid", "--run", "/usr/bin/env")


@pytest.mark.timeout(120)
def test_random_operations():
    folder, old = failed_before()
    for case in old:
        oracle("--replay", case, "--times", "5")
        os.unlink(case)
    seed = ["--seed", SEED] if SEED else []
    said = oracle("--ops", str(OPERATIONS), "--seconds", "100", "--jobs", "2", "--keep", folder, *seed)
    # it stops early where the time is over
    assert int(said.split(" compared with TCP")[0].split()[-1]) >= OPERATIONS, said
    share = float(said.split("mode up: ")[1].split(", ")[1].split(" %")[0])
    assert share > 85, said
