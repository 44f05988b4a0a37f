#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Count results: tally.py unit BUILD-DIR STATUS | tally.py junit FILE STATUS

Prints "passed failed skipped". STATUS is the exit status of the run that left the results; a run that
failed without a failed test to show for it, or that left nothing, counts as one failure.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree

CASE = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (?!\d+ test|GROUP|.*test\(s\))(\S+)", re.M)


def program(trs):
    """One program of "make check": its cmocka cases where it has them, else the program itself."""
    result = re.search(r"^:test-result: *(\S+)", trs.read_text(), re.M)
    result = result.group(1) if result else "ERROR"
    log = trs.with_suffix(".log")
    text = log.read_text(errors="replace") if log.exists() else ""
    cases = {"OK": set(), "FAILED": set(), "SKIPPED": set()}
    for kind, name in CASE.findall(text):
        cases[kind].add(name)
    good = len(cases["OK"] - cases["FAILED"])
    bad = len(cases["FAILED"])
    skip = len(cases["SKIPPED"] - cases["FAILED"])
    if result == "PASS":
        if bad:
            return good, bad, skip
        return (good, 0, skip) if good + skip else (1, 0, 0)
    if result == "SKIP":
        return 0, 0, max(skip, 1)
    if result == "XFAIL":
        return 0, 0, 1
    return good, max(bad, 1), skip


def unit(build):
    total = (0, 0, 0)
    for trs in sorted(pathlib.Path(build).rglob("*.trs")):
        total = tuple(a + b for a, b in zip(total, program(trs)))
    return total


def junit(path):
    good = bad = skip = 0
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return 0, 0, 0
    for suite in root.iter("testsuite"):
        tests, failures, errors, skipped = (
            int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
        bad += failures + errors
        skip += skipped
        good += tests - failures - errors - skipped
    return good, bad, skip


def main():
    kind, where, status = sys.argv[1], sys.argv[2], int(sys.argv[3])
    good, bad, skip = {"unit": unit, "junit": junit}[kind](where)
    if bad == 0 and (status != 0 and not (status == 5 and skip) or good + skip == 0):
        bad = 1
    print(good, bad, skip)


if __name__ == "__main__":
    main()
