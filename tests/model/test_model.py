# SPDX-License-Identifier: BSD-2-Clause
"""Every scenario of scenario.c holds, and the checker finds what is put wrong on purpose."""
import re
import subprocess

import pytest

import build

SCENARIOS = re.findall(r'^\t\{ "([^"]+)"(?!.*\.deep = 1)', (build.TOP / "tests/model/scenario.c").read_text(), re.M)

# What the checker finds in the code as it is, and is not mended: scenario -> fault.
KNOWN = {}

# name: (source, text, replacement, scenarios of which one at least must fail)
MUTANTS = {
    "what was read behind a freeze is read again": (
        "core/shm_ring_rx.c", "rx->late + (rx->taken - xr_load_relaxed(&rx->got));", "rx->late;", ["one-way"]),
    "a freeze by the sender looks like one by the receiver": (
        "core/shm_ring.c", "XR_FROZEN | XR_REPLAYING)", "XR_FROZEN)", ["one-way", "both-ways"]),
    "a seal looks at the ring once": (
        "core/shm_ring_rx.c", "#define RX_SEAL_TRIES\t64", "#define RX_SEAL_TRIES\t1", ["one-way", "both-ways"]),
    "nobody looks for a sleeper after a send": (
        "preload/flow_tx.c", "\t\t\txr_shm_tx_armed(&f->tx, waiter);\n", "", ["sleep"]),
    "the look for a sleeper comes before the publication": (
        "preload/flow_tx.c", "\t\tn = tx_ring(f, iov, cnt, skip, len, flags);\n\t\tif (n > 0) {\n",
        "\t\txr_shm_tx_armed(&f->tx, waiter);\n\t\tn = tx_ring(f, iov, cnt, skip, len, flags);\n"
        "\t\tif (n > 0) {\n\t\t\treturn n;\n", ["sleep"]),
    "no barrier between a publication and the look for a sleeper": (
        "core/shm_ring.c", "look for a sleeper */\n\txr_fence_store_load();\n", "look for a sleeper */\n", ["tso-sleep"]),
    "no barrier between a seal and the next look at the ring": (
        "core/shm_ring_rx.c", "\t\t\t */\n\t\t\txr_fence_store_load();\n", "\t\t\t */\n", ["tso-sleep-sealed"]),
    "START before READY": (
        "preload/upgrade.c", "u->state == XR_UP_READY && xr_load_acquire(&f->tx.dir->ready)",
        "u->state == XR_UP_READY", ["sleep-upgrade", "upgrade-back", "upgrade"]),
    "the ring is read before the rest of TCP": (
        "preload/flow_machine.c", "f->drain_to != got ? XR_RX_DRAIN : XR_RX_RING", "XR_RX_RING", ["upgrade-lag"]),
    "any FIN is a death": (
        "preload/flow_rx_look.c", "\treturn xr_shm_link_progress(f->link) != 0 && !(xr_flow_peer_state(f) & XR_DIR_CLOSED);\n",
        "\treturn 1;\n",
        ["half-close-poll"]),
    "memory is not looked at again when the FIN shows": (
        "preload/flow_rx.c",
        "\t\t\tn = rx_ring(f, fd, d, len, flags);\n\t\t\tif (n == RX_MOVED)\n",
        "\t\t\tif (n == RX_MOVED)\n", ["kill", "kill-lag"]),
    "END is forgotten by a replay": (
        "preload/flow_machine.c", "\tif (f->tx_shut && !f->tx_kfin) {", "\tif (0) {", ["half-close", "half-close-exec"]),
    "unread bytes do not make a close a reset": (
        "preload/flow_close.c", "abort = unread || ", "unread = 0;\n\tabort =", ["close", "sleep-close", "upgrade-close"]),
    "a frame that comes with its FIN is taken for missing": (
        "preload/flow_far.c", "\tif (frame_here(fd, &m) > 0)\n\t\treturn 1;\n", "\t(void)m;\n", ["far-shut"]),
    "what was read of a replay between hosts is read again": (
        "preload/flow_far.c", "\tf->rx.late = f->rx.late_next;\n", "", ["far-fine", "far-one-way"]),
    "nobody says that the channel is gone": (
        "bridge/carry.c", "\tif (how == CARRY_LOST)\n", "\tif (0)\n", ["far-fine", "far-one-way"]),
    "the block of a direction is given away while the peer reads it": (
        "preload/flow.c", " || (f->link && !flow_peer_done(f));", ";", ["close", "sleep-close", "kill-close"]),
}


@pytest.fixture(scope="session")
def checker(tmp_path_factory):
    work = tmp_path_factory.mktemp("model")
    return work / "check", build.build(work / "check", work)


def check(program, *arguments):
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode in (0, 1), done
    return done


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_holds(checker, scenario, request):
    if scenario in KNOWN:
        request.applymarker(pytest.mark.xfail(reason=KNOWN[scenario]))
    done = check(checker[0], *(["--brief"] if scenario in KNOWN else []), scenario)
    assert done.returncode == 0, "\n" + done.stdout


@pytest.mark.parametrize("mutant", MUTANTS)
def test_finds(checker, mutant, tmp_path):
    source, old, new, scenarios = MUTANTS[mutant]
    text = (build.TOP / source).read_text()
    assert text.count(old) == 1, "the source has changed: this mutant needs another text"
    objects = dict(checker[1])
    objects[source] = tmp_path / "mutant.o"
    build.compile_one(source, objects[source], text.replace(old, new))
    build.link(tmp_path / "check", objects)
    scenarios = [s for s in scenarios if s not in KNOWN]
    if not scenarios:
        pytest.skip("its scenario fails as it is")
    for scenario in scenarios:
        done = check(tmp_path / "check", "--brief", scenario)
        if done.returncode:
            assert "holds" not in done.stdout
            return
    pytest.fail("not found in " + ", ".join(scenarios))
