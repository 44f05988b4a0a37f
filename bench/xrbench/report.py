# SPDX-License-Identifier: BSD-2-Clause
"""The table, the JSON file and the plot."""
import datetime
import json
import os
import platform

from . import measure

GREEN, RED, BLUE, GREY, INK = "#2a7f4f", "#b3432b", "#3a6ea5", "#8a8f98", "#22262b"
TICKS = (.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200)


def num(v):
    if v is None:
        return "-"
    if v >= 1000:
        return f"{v:,.0f}"
    return f"{v:.3g}" if v < 100 else f"{v:.0f}"


def times(r):
    return "-" if r is None else f"{r:.2f}x" if r < 10 else f"{r:.1f}x"


def span(rs):
    return f"{times(min(rs))[:-1]}..{times(max(rs))[:-1]}" if rs else ""


def summary(row):
    """One line for the progress display."""
    if row.error:
        return f"{row.work.title}: FAILED: {row.error}"
    name = row.work.contenders[1].name
    text = (f"{row.work.title}: plain {num(row.median('plain'))}, {name} {num(row.median(name))} "
            f"{row.work.unit}, ratio {times(row.ratio())}")
    missed = [f for f, _, met in row.floors() if not met]
    if missed:
        text += f", FLOOR {missed[0].ratio:g}x MISSED"
    return text


def _lines(row):
    """Table cells: the main comparison first, then one line per further contender."""
    w, first = row.work, row.work.contenders[1].name
    out = []
    pairs = [(first, "plain")] + [(f.who, f.against) for f in w.floors
                                  if (f.who, f.against) != (first, "plain")]
    for who, against in pairs:
        floor = [x for x in row.floors() if (x[0].who, x[0].against) == (who, against)]
        title = w.title if against == "plain" else f"  against {against}"
        mark = ""
        if floor:
            mark = f"{floor[0][0].ratio:g}x " + ("ok" if floor[0][2] else "MISSED")
        if row.error:
            out.append([title, "failed: " + row.error])
            break
        out.append([title, f"{num(row.median(against))} {w.unit}", f"{num(row.median(who))} {w.unit}",
                    times(row.ratio(who, against)), span(row.ratios(who, against)),
                    num(row.cpu(against)), f"{num(row.cpu(who))} {w.cpu_unit}", mark])
    return out


def table(rows, info):
    head = ["work", "plain TCP", "null" if info["null"] else "xrdma", "ratio", "rounds",
            "CPU plain", "CPU xrdma", "floor"]
    body = [ln for r in rows for ln in _lines(r)]
    full = [head] + [ln for ln in body if len(ln) > 2]
    width = [max(len(ln[i]) for ln in full) for i in range(len(head))]
    out = []
    for ln in [head] + body:
        if len(ln) == 2:
            out.append(ln[0].ljust(max(width[0], len(ln[0]))) + "  " + ln[1].replace("\n", " ")[:300])
            continue
        cells = [c.ljust(w) if i in (0, 6, 7) else c.rjust(w)
                 for i, (c, w) in enumerate(zip(ln, width))]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "-" * max(len(x) for x in out[:1] + out))
    noisy = [r for r in rows if r.foreign and sorted(r.foreign)[len(r.foreign) // 2] > .1]
    out += ["", "ratio: how many times faster, medians of "
            f"{info['rounds']} interleaved rounds; rounds: smallest and largest ratio of one round;",
            f"where the floor is near 1: median of the ratios of {info['rounds'] * measure.CLOSE} rounds;",
            "CPU: both ends together, user and system, per operation."]
    if noisy:
        out.append("Other programs took more than 10% of the machine during: "
                   + ", ".join(r.work.ident for r in noisy) + ".")
    for r in rows:
        if r.misplaced():
            out.append(f"{r.work.ident}: {r.misplaced()}.")
    return "\n".join(out)


def describe(args):
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            model = next((ln.split(":", 1)[1].strip() for ln in f if ln.startswith("model name")), "")
    except OSError:
        pass
    return {"when": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "kernel": platform.release(), "cpu": model, "cores": len(os.sched_getaffinity(0)),
            "rounds": args.rounds, "seconds": args.seconds, "pinned": args.pin, "null": args.null}


def write_json(path, rows, info):
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**info, "rows": [r.as_dict() for r in rows]}, f, indent=1)
        f.write("\n")


def label(ax, x, y, ratio, values, color):
    for text, points, size, weight, ink in ((ratio, 7, 9.5, "bold", color),
                                            (values, 50, 8.5, "normal", INK)):
        ax.annotate(text, (x, y), (points, 0), textcoords="offset points", va="center",
                    fontsize=size, fontweight=weight, color=ink)


def plot(path, rows, info):
    """Ratios on a log scale with the floors marked, and CPU per operation beside them."""
    import matplotlib                       # late: a run without a plot needs none
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    bars = []
    for r in rows:
        if r.error:
            continue
        first = r.work.contenders[1].name
        pairs = [(first, "plain")] + [(f.who, f.against) for f in r.work.floors
                                      if f.against != "plain"]
        for who, against in pairs:
            floor = next((f.ratio for f in r.work.floors if (f.who, f.against) == (who, against)),
                         None)
            title = r.work.title if against == "plain" else f"{r.work.title},\nagainst {against}"
            bars.append((title, r.ratio(who, against), r.ratios(who, against), floor,
                         r.cpu(against), r.cpu(who), r.work.cpu_unit,
                         f"{num(r.median(against))} → {num(r.median(who))} {r.work.unit}"))
    if not bars:
        return False
    n, inch = len(bars), .44
    height = n * inch + 1.75
    fig, (ax, cx) = plt.subplots(1, 2, figsize=(13.5, height), sharey=True,
                                 gridspec_kw={"width_ratios": [3, 2], "wspace": .03})
    fig.subplots_adjust(left=.19, right=.99, top=1 - 1.0 / height, bottom=.75 / height)
    ax.set_xscale("log")
    cx.set_xscale("log")
    low = min([.5] + [min(b[2]) for b in bars]) * .9
    high = max([2] + [max(b[2] + [b[3] or 1]) for b in bars])
    for i, (_, ratio, rounds, floor, _, _, _, values) in enumerate(bars):
        color = BLUE if floor is None else GREEN if ratio >= floor else RED
        ax.barh(i, ratio - 1, left=1, height=.56, color=color, zorder=2)
        ax.plot([min(rounds), max(rounds)], [i, i], color=INK, lw=1.2, zorder=4)
        if floor:
            ax.plot([floor, floor], [i - .42, i + .42], color=INK, lw=2.4, zorder=3)
        at = max([ratio, 1] + rounds + ([floor] if floor else []))
        label(ax, at, i, times(ratio), values, color)
    ax.set_xlim(low, high * (high / low) ** .5)
    ax.set_xticks([t for t in TICKS if low <= t <= high * 1.3])
    ax.set_yticks(range(n), [b[0] for b in bars], fontsize=9.5, color=INK)
    ax.set_ylim(n - .4, -.6)
    ax.set_title("times faster than plain TCP (log scale, right is better)", fontsize=10, loc="left",
                 color=INK)
    cpu = [b[5] / b[4] if b[4] and b[5] else 1 for b in bars]
    clow, chigh = min([.5] + cpu) * .9, max([2] + cpu) * 1.1
    for i, b in enumerate(bars):
        color = GREY if cpu[i] <= 1 else RED
        cx.barh(i, cpu[i] - 1, left=1, height=.56, color=color, zorder=2)
        label(cx, max(cpu[i], 1), i, f"{cpu[i]:.2f}x", f"{num(b[4])} → {num(b[5])} {b[6]}", color)
    cx.set_xlim(clow, max(chigh, 1.2) * (chigh / clow) ** 1.15)
    ticks = TICKS if chigh / clow < 12 else (.01, .03, .1, .3, 1, 3, 10, 30)
    cx.set_xticks([t for t in ticks if clow <= t <= chigh])
    cx.set_title("CPU time per operation, both ends (left is better)", fontsize=10, loc="left",
                 color=INK)
    for a in (ax, cx):
        a.axvline(1, color=GREY, lw=1.2, zorder=1)
        a.xaxis.set_major_locator(FixedLocator(a.get_xticks()))
        a.xaxis.set_minor_locator(NullLocator())
        a.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}x"))
        a.grid(axis="x", color="#e6e8eb", zorder=0)
        for side in ("top", "right", "left"):
            a.spines[side].set_visible(False)
        a.tick_params(axis="y", length=0)
    what = "plain TCP beside plain TCP (noise)" if info["null"] else "xrdma beside plain TCP"
    fig.text(.012, 1 - .32 / height, f"{what}: unmodified programs, one host, loopback", ha="left",
             fontsize=13, fontweight="bold", color=INK)
    keys = [Line2D([], [], color=INK, lw=2.4, label="floor"),
            Line2D([], [], color=INK, lw=1.2, label="smallest to largest round"),
            Patch(color=GREEN, label="floor met"), Patch(color=RED, label="floor missed"),
            Patch(color=BLUE, label="no floor")]
    fig.legend(handles=keys, loc="lower right", ncol=5, fontsize=8.5, frameon=False,
               bbox_to_anchor=(.99, .02 / height))
    fig.text(.012, .13 / height, f"{info['cpu']}, {info['cores']} cores, Linux {info['kernel']}; "
             f"medians of {info['rounds']} interleaved rounds", fontsize=8.5, color="#555555")
    fig.savefig(path, dpi=120)
    plt.close(fig)
    return True
