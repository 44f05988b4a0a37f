#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures unmodified programs on plain TCP and on xrdma, side by side."""
import argparse
import os
import sys
import time

sys.dont_write_bytecode = True      # the source tree may be read-only and stays clean
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from xrbench import measure, proc, report, work     # noqa: E402

DEMO = ("redis-1", "redis-50", "iperf3", "nginx", "rtt")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, epilog="Exit status: 0, or 1 when a run failed, "
                                "flows were not on shm, or (with --check-floors) a floor was missed.")
    p.add_argument("--build", default=os.environ.get("XRDMA_BUILD", "."),
                   help="build directory (default: $XRDMA_BUILD or the current one)")
    p.add_argument("--list", action="store_true", help="name the rows and their floors")
    p.add_argument("--only", metavar="ID,...", help="measure only these rows")
    p.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    p.add_argument("--seconds", type=float, default=1, help="seconds per sample (default 1)")
    p.add_argument("--json", metavar="FILE", help="write all samples")
    p.add_argument("--plot", metavar="FILE", help="write a PNG (needs python3-matplotlib)")
    p.add_argument("--check-floors", action="store_true", help="exit 1 when a floor is missed")
    p.add_argument("--wait-quiet", type=float, default=0, metavar="S",
                   help="before a sample, wait up to S seconds for an otherwise idle machine, and "
                   "take up to 4 times the rounds, of which the quietest count")
    p.add_argument("--no-pin", dest="pin", action="store_false",
                   help="let the scheduler place the applications (ping-pong stays pinned)")
    p.add_argument("--null", action="store_true", help="plain against plain: shows the noise")
    p.add_argument("--demo", metavar="DIR", help="the rows of bench/demo, results into DIR")
    p.add_argument("--elapsed", type=float, default=0, help=argparse.SUPPRESS)
    return p.parse_args()


def choose(args):
    rows = work.catalogue()
    if args.demo and not args.only:
        return [next(r for r in rows if r.ident == i) for i in DEMO]
    if not args.only:
        return rows
    wanted = args.only.split(",")
    unknown = set(wanted) - {r.ident for r in rows}
    if unknown:
        sys.exit(f"run.py: no row named {', '.join(sorted(unknown))}; see --list")
    return [r for r in rows if r.ident in wanted]


def show_flows(rows):
    for r in rows:
        for name, lines in r.flows.items():
            shm, n = work.on_shm(lines)
            print(f"\nxr-stat -a -n during {r.work.title} ({name}): {shm} of {n} flow ends on shm")
            print("\n".join("  " + ln.rstrip() for ln in lines[:9]))
            if len(lines) > 9:
                print(f"  ... {len(lines) - 9} more lines")


def main():
    args = arguments()
    rows = choose(args)
    if args.list:
        for w in rows:
            floors = ", ".join(f"{f.who} >= {f.ratio:g}x {f.against}" for f in w.floors)
            print(f"{w.ident:18}{w.title:36}{floors}")
        return 0
    proc.install_cleanup()
    progress = measure.Progress(time.monotonic() - args.elapsed)
    done = []
    try:
        setup = work.Setup(os.path.abspath(args.build), args.pin, args.null)
        for w in rows:
            row = measure.measure(w, setup, args.rounds, args.seconds, args.wait_quiet, progress)
            progress.line(report.summary(row))
            done.append(row)
    except proc.BenchError as e:
        sys.exit(f"run.py: {e}")
    except KeyboardInterrupt:
        proc.stop_all()
        sys.stderr.write("\nrun.py: interrupted, everything stopped\n")
        return 130
    info = report.describe(args)
    text = report.table(done, info)
    print("\n" + text)
    if args.demo:
        show_flows(done)
        with open(os.path.join(args.demo, "table.txt"), "w", encoding="utf-8") as f:
            f.write(text + "\n")
        args.json = args.json or os.path.join(args.demo, "results.json")
        args.plot = args.plot or os.path.join(args.demo, "ratios.png")
    if args.json:
        report.write_json(args.json, done, info)
    if args.plot:
        try:
            report.plot(args.plot, done, info)
        except ImportError as e:
            sys.stderr.write(f"run.py: no plot: {e}\n")
            args.plot = None
    if args.demo:
        print(f"\nresults in {args.demo}: " + ", ".join(sorted(os.listdir(args.demo))))
    failed = [r for r in done if r.error or r.misplaced()]
    for r in failed:
        sys.stderr.write(f"run.py: {r.work.title}: {r.error or r.misplaced()}\n")
    missed = [r for r in done if not all(met for _, _, met in r.floors())]
    if args.check_floors and missed:
        sys.stderr.write("run.py: floors missed: " + ", ".join(r.work.ident for r in missed) + "\n")
    return 1 if failed or (args.check_floors and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
