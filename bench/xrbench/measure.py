# SPDX-License-Identifier: BSD-2-Clause
"""Interleaved rounds, medians and ratios."""
import os
import statistics
import sys
import time

from . import proc, work


QUIET = .1      # of the machine may be taken by others during a quiet round
CLOSE = 5       # times the rounds where the floor is closer to 1 than the noise of a few rounds


class Progress:
    """One line per step with the elapsed time; on a terminal it is updated while it runs."""

    def __init__(self, start=None):
        self.start = start if start is not None else time.monotonic()
        self.live = sys.stderr.isatty()
        self.open = False

    def _write(self, text, end):
        head = f"[{time.monotonic() - self.start:6.1f} s] "
        sys.stderr.write(("\r\033[K" if self.live else "") + head + text + end)
        sys.stderr.flush()

    def update(self, text):
        if self.live:
            self._write(text[:os.get_terminal_size(sys.stderr.fileno()).columns - 13 or 60], "")
            self.open = True

    def line(self, text):
        self._write(text, "\n")
        self.open = False


def speed(w, base, other):
    """How many times faster other is than base."""
    return base / other if w.lower else other / base


def wait_quiet(seconds):
    """Waits until the machine is idle but for us, at most so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        b, t = proc.machine_busy(), time.monotonic()
        time.sleep(.3)
        if (proc.machine_busy() - b) / (time.monotonic() - t) < .08:
            return


def take(w, setup, c, seconds, quiet):
    """One sample, with the share of the machine that others used meanwhile."""
    if quiet:
        wait_quiet(quiet)
    busy, t, own = proc.machine_busy(), time.monotonic(), time.process_time()
    server = w.servers[c.name].cpu()
    kids = os.times()
    s = w.sample(setup, c, seconds)
    after = os.times()
    ours = (w.servers[c.name].cpu() - server + time.process_time() - own
            + after.children_user - kids.children_user
            + after.children_system - kids.children_system)
    span = (time.monotonic() - t) * os.cpu_count()
    foreign = max(0, (proc.machine_busy() - busy - ours) / span)
    return s, foreign


class Row:
    """The figures of one work."""

    def __init__(self, w):
        self.work, self.error = w, None
        self.samples = {c.name: [] for c in w.contenders}
        self.foreign = []
        self.flows = {}         # contender -> xr-stat lines of the live flows
        self.seconds = 0

    def keep(self, rounds):
        """The rounds that count: chosen by what others did meanwhile, not by their results."""
        for c in self.work.contenders:
            self.samples[c.name] = [one[c.name][0] for _, _, one in sorted(rounds, key=lambda r: r[1])]
        self.foreign = [f for f, _, _ in rounds]

    def median(self, name):
        v = [s.value for s in self.samples[name]]
        return statistics.median(v) if v else None

    def cpu(self, name):
        """CPU of both ends per operation, in the work's unit."""
        v = [s.cpu / s.ops * self.work.cpu_scale for s in self.samples[name] if s.ops]
        return statistics.median(v) if v else None

    def ratio(self, who=None, against="plain"):
        """Of the medians; where percents count, the median of the ratios of neighbouring runs: what others do to
        the machine changes more from one minute to the next than from one run to the next."""
        who = who or self.work.contenders[1].name
        if self.work.close and self.ratios(who, against):
            return statistics.median(self.ratios(who, against))
        a, b = self.median(against), self.median(who)
        return speed(self.work, a, b) if a and b else None

    def ratios(self, who=None, against="plain"):
        """Ratios of neighbouring runs."""
        who = who or self.work.contenders[1].name
        return [speed(self.work, a.value, b.value)
                for a, b in zip(self.samples[against], self.samples[who])]

    def floors(self):
        """[(floor, ratio, met)]"""
        out = []
        for f in self.work.floors:
            r = self.ratio(f.who, f.against)
            out.append((f, r, r is not None and r >= f.ratio))
        return out

    def misplaced(self):
        """A sentence when the flows were not where the row needs them, else None."""
        for name in self.flows:
            shm, n = work.on_shm(self.flows[name])
            if self.work.carried and shm * 2 < max(n, 1):   # control connections may stay
                return f"{shm} of {n} flow ends that xr-stat showed were on shm"
            if self.work.carried is False and shm:
                return f"{shm} of {n} flow ends were on shm with one end plain"
        return None

    def as_dict(self):
        w = self.work
        d = {"id": w.ident, "title": w.title, "unit": w.unit,
             "better": "lower" if w.lower else "higher", "cpu_unit": w.cpu_unit,
             "error": self.error, "misplaced": self.misplaced(),
             "foreign_load": round(statistics.median(self.foreign), 4) if self.foreign else None,
             "contenders": {}, "ratios": [], "xr_stat": self.flows}
        for name, ss in self.samples.items():
            d["contenders"][name] = {
                "median": self.median(name), "cpu_per_op": self.cpu(name),
                "values": [s.value for s in ss], "cpu_s": [s.cpu for s in ss],
                "ops": [s.ops for s in ss], "extra": [s.extra for s in ss]}
        pairs = [(w.contenders[1].name, "plain")]
        pairs += [(f.who, f.against) for f in w.floors if (f.who, f.against) not in pairs]
        for who, against in pairs:
            f = [x for x in self.floors() if (x[0].who, x[0].against) == (who, against)]
            d["ratios"].append({"who": who, "against": against, "ratio": self.ratio(who, against),
                                "rounds": self.ratios(who, against),
                                "floor": f[0][0].ratio if f else None,
                                "met": f[0][2] if f else None})
        return d


def measure(w, setup, rounds, seconds, quiet, progress):
    """Runs one work: probes, then rounds of all contenders in turn."""
    row, t0 = Row(w), time.monotonic()
    try:
        progress.update(f"{w.title}: starting")
        w.start(setup)
        for c in w.contenders:
            progress.update(f"{w.title}: warming up {c.name}")
            lines = w.probe(setup, c, seconds)
            if lines:
                row.flows[c.name] = lines
        taken = []
        rounds *= CLOSE if w.close else 1
        while len(taken) < rounds or (
                quiet and len(taken) < 4 * rounds
                and sum(r[0] <= QUIET for r in taken) < rounds):
            one = {}
            # by turns first and last: what drifts would favour one of them
            for c in w.contenders[::-1 if len(taken) % 2 else 1]:
                so_far = row.ratio()
                progress.update(f"{w.title}: round {len(taken) + 1} {c.name}"
                                + (f", ratio so far {so_far:.2f}" if so_far else ""))
                one[c.name] = take(w, setup, c, seconds, quiet)
            taken.append((max(f for _, f in one.values()), len(taken), one))
            row.keep(sorted(taken)[:rounds])
    except proc.BenchError as e:
        row.error = str(e)
    except (OSError, ValueError, KeyError, IndexError) as e:
        row.error = f"{type(e).__name__}: {e}"
    finally:
        w.stop()
    row.seconds = time.monotonic() - t0
    return row
