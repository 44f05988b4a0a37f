# SPDX-License-Identifier: BSD-2-Clause
"""Every call that is hooked is made once, on a connection that a fabric carries where there is one, and does what it
does on kernel TCP. xrhooks.c says how it is seen that the call passed its hook."""
import os
import re

import pytest

import harness

pytestmark = [pytest.mark.one_host, pytest.mark.timeout(120)]


def hooks():
    """The names in hooks.def, by subject."""
    with open(os.path.join(harness.SOURCE, "preload/hooks.def"), encoding="utf-8") as f:
        text = f.read()
    text = text[text.index("#define XR_HOOKS"):]
    subject = dict(re.findall(r"^\tX\((\w+), (\w+),", text, re.M))
    subject.update((alias, subject[name]) for alias, name in re.findall(r"^\tA\((\w+), (\w+)\)", text, re.M))
    return subject


HOOKS = hooks()


@pytest.mark.modes("plain", "both")
@pytest.mark.parametrize("subject", sorted(set(HOOKS.values())))
def test_every_hook(env, subject):
    tried = [name for name in HOOKS if HOOKS[name] == subject]
    said = {}
    for name in tried:
        p = env.start("server", [harness.prog("xrhooks"), "fabric" if env.lifts else "tcp", name])
        status = p.wait(10)
        said[name] = status == 0 and p.line() == "ok" or p.describe()
        p.stop()
    assert said == dict.fromkeys(tried, True)


def test_none_is_left_out():
    p = harness.Proc([harness.prog("xrhooks"), "list"])
    names = [p.line() for _ in range(len(HOOKS))]
    assert len(HOOKS) > 130 and sorted(names) == sorted(HOOKS)
    assert p.line(eof_ok=True) is None
    p.stop()
