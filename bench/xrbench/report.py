# SPDX-License-Identifier: BSD-2-Clause
"""The table, the JSON file and the plot."""
import datetime
import json
import os
import platform


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


def plot(path, rows, info):
    """Ratios on a log scale with the floors marked, and CPU per operation beside them."""
    import matplotlib                       # late: a run without a plot needs none
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

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
    green, red, grey, blue = "#2a7f4f", "#b3432b", "#8a8f98", "#3a6ea5"
    fig, (ax, cx) = plt.subplots(1, 2, figsize=(13, 1.7 + .5 * len(bars)), sharey=True,
                                 gridspec_kw={"width_ratios": [3, 2], "wspace": .04})
    y = range(len(bars))
    low = min([.5] + [min(b[2]) for b in bars]) * .9
    high = max([2] + [max(b[2] + [b[3] or 1]) for b in bars])
    for i, (_, ratio, rounds, floor, _, _, _, values) in enumerate(bars):
        ok = floor is None or ratio >= floor
        ax.barh(i, ratio - 1, left=1, height=.55, color=green if ok else red, zorder=2)
        ax.plot([min(rounds), max(rounds)], [i, i], color="black", lw=1, zorder=4)
        if floor:
            ax.plot([floor, floor], [i - .38, i + .38], color="black", lw=2.2, zorder=3)
        at = max([ratio, 1] + rounds + ([floor] if floor else []))
        ax.text(at * (high / low) ** .012, i, f"{times(ratio)}   {values}", va="center", fontsize=8.5)
    ax.axvline(1, color=grey, lw=1, zorder=1)
    ax.set_xscale("log")
    ax.set_xlim(low, high * (high / low) ** .5)
    for a in (ax, cx):
        a.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}x"))
        a.xaxis.set_minor_formatter(NullFormatter())
        a.grid(axis="x", color="#e3e5e8", zorder=0)
        for side in ("top", "right", "left"):
            a.spines[side].set_visible(False)
        a.tick_params(axis="y", length=0)
    ticks = [t for t in (.1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= t <= high * 1.3]
    ax.set_xticks(ticks)
    ax.set_yticks(list(y), [b[0] for b in bars], fontsize=9)
    ax.invert_yaxis()
    ax.set_title("times faster than plain TCP (right is better)", fontsize=10, loc="left")
    ax.plot([], [], color="black", lw=2.2, label="floor")
    ax.plot([], [], color="black", lw=1, label="rounds, smallest to largest")
    cpu = [b[5] / b[4] if b[4] and b[5] else 1 for b in bars]
    clow, chigh = min([.5] + cpu) * .9, max([2] + cpu) * 1.1
    for i, b in enumerate(bars):
        cx.barh(i, cpu[i] - 1, left=1, height=.55, color=blue if cpu[i] <= 1 else red, zorder=2)
        right = cpu[i] >= 1
        cx.text(max(cpu[i], 1) * (chigh / clow) ** .02, i,
                f"{cpu[i]:.2f}x   {num(b[4])} → {num(b[5])} {b[6]}", va="center", fontsize=8.5,
                color="black" if right else "#222222")
    cx.axvline(1, color=grey, lw=1, zorder=1)
    cx.set_xscale("log")
    cx.set_xlim(clow, chigh * (chigh / clow) ** .9)
    cx.set_xticks([t for t in (.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20) if clow <= t <= chigh])
    cx.set_title("CPU time per operation, both ends (left is better)", fontsize=10, loc="left")
    fig.legend(loc="upper right", ncol=2, fontsize=8.5, frameon=False, bbox_to_anchor=(.9, 1))
    what = "plain TCP beside plain TCP (noise)" if info["null"] else "xrdma beside plain TCP"
    fig.suptitle(f"{what}: unmodified programs, one host, loopback", x=.125, ha="left",
                 fontsize=12, fontweight="bold")
    fig.text(.125, .012, f"{info['cpu']}, {info['cores']} cores, Linux {info['kernel']}; medians of "
             f"{info['rounds']} interleaved rounds", fontsize=8, color="#555555")
    fig.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(fig)
    return True
