#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""build.py OUTPUT: the checker, over the sources of this tree as they are."""
import os
import pathlib
import shlex
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
CHECKED = ["bridge/carry.c", "bridge/carry_talk.c", "core/defer.c", "core/reason.c", "core/shm_ring.c",
           "core/shm_ring_rx.c", "preload/flow*.c", "preload/ksock.c", "preload/links.c", "preload/lock.c",
           "preload/upgrade.c", "preload/upgrade_attempt.c", "preload/upgrade_begin.c", "preload/upgrade_far.c",
           "preload/upgrade_switch.c", "preload/zerocopy.c"]
OWN = ["around.c", "check.c", "ends.c", "fabric.c", "kernel.c", "scenario.c", "world.c"]


def sources():
    checked = [str(f.relative_to(TOP)) for pattern in CHECKED for f in sorted(TOP.glob(pattern))]
    return checked + ["tests/model/" + f for f in OWN]


def compile_one(source, obj, text=None):
    """Compiles a source of the tree, or another text in its place."""
    folder = TOP / os.path.dirname(source)
    command = shlex.split(os.environ.get("CC", "cc")) + [
        "-std=gnu11", "-O2", "-g", "-Wall", "-D_GNU_SOURCE=", "-I", str(TOP), "-iquote", str(folder)]
    for name in ("core", "preload", "bridge", "tests/model"):
        command += ["-iquote", str(TOP / name)]
    command += ["-include", str(TOP / "tests/model/points.h"), "-c", "-o", str(obj)]
    if source.startswith("bridge/"):
        command += ["-include", str(TOP / "tests/model/pool.h")]
    if text is None:
        subprocess.run(command + [str(TOP / source)], check=True)
    else:
        subprocess.run(command + ["-x", "c", "-"], check=True, input=text, text=True)


def build(output, work):
    """Returns the objects by source."""
    objects = {}
    for source in sources():
        objects[source] = work / (source.replace("/", "-") + ".o")
        compile_one(source, objects[source])
    link(output, objects)
    return objects


def link(output, objects):
    subprocess.run(shlex.split(os.environ.get("CC", "cc")) + ["-o", str(output)] + [str(o) for o in objects.values()],
                   check=True)


if __name__ == "__main__":
    import tempfile
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as d:
        build(sys.argv[1], pathlib.Path(d))
