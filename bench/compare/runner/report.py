"""The result as text."""

from .figures import BYTES, LATENCY, RATE, fastest

SIZE_NAMES = {8: "8 B", 64: "64 B", 1 << 10: "1 KiB", 64 << 10: "64 KiB"}


def text(result):
    """All tables."""
    entries = result["figures"]
    parts = [
        head(result),
        "One way, ns: best (median). Round trips divided by two; bare-copy is one copy.",
        by_size(entries, LATENCY, 1.0),
        "Streams, million messages a second: best (median).",
        by_size(entries, RATE, 1e6),
        "Streams, GB a second: best (median).",
        by_size(entries, BYTES, 1e9),
    ]
    compared = against(entries)
    if compared:
        parts += [
            "Farside's best channel divided by the peer's figure: ratio of the bests (of the medians).",
            "Times: below 1 is faster. Rates: above 1 is faster.",
            compared,
        ]
    parts += ["Targets, judged by the best windows.", targets(result["targets"])]
    parts += [f"FAILED {name}: {words}" for name, words in result["failures"].items()]
    return "\n\n".join(part for part in parts if part)


def head(result):
    """The machine, the setup and the versions."""
    setup = result["setup"]
    lines = [
        f"{setup['processor']}, processors {setup['processors'][0]} and {setup['processors'][1]}",
        f"{setup['rounds']} rounds of {setup['windows']} windows a figure",
        "used by others: "
        f"{setup['busy_before']:.0%} before, {setup['busy_after']:.0%} after the measurements",
    ]
    for name, version in result["versions"].items():
        probes = result["probes"].get(name, {})
        aside = sum(1 for party, _ in result["set_aside"] if party == name)
        lines.append(f"{name}: {version}{probe_range(probes)}{excluded(aside)}")
    return "\n".join(lines)


def probe_range(probes):
    """The range of `bare-line` before and after a party's rounds: it shows how the host placed the processors."""
    times = [each for pair in probes.values() for each in pair]
    if not times:
        return ""
    return f"; before and after it bare-line took {min(times):.0f} to {max(times):.0f} ns"


def excluded(rounds):
    """How many rounds do not count because the host had placed the processors differently."""
    return f"; rounds set aside: {rounds}" if rounds else ""


def size_name(size):
    return SIZE_NAMES.get(size, f"{size} B")


def label(entry):
    """A channel's name with its payload and its way of waiting, if they are not the usual ones."""
    words = [entry["channel"]]
    if entry["party"] == "farside":
        words.insert(0, "farside")
    if entry["payload"] != "copied":
        words.append(entry["payload"])
    if entry["wait"] == "block":
        words.append("blocking")
    return ", ".join(words)


def number(value):
    """The number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def sizes_of(entries, measure):
    return sorted({entry["message_bytes"] for entry in entries if entry.get(measure) is not None})


def by_size(entries, measure, unit):
    """A line for each channel, a column for each size."""
    sizes = sizes_of(entries, measure)
    rows = {}
    for entry in entries:
        if entry.get(measure) is not None:
            spread = entry[measure]
            cell = f"{number(spread['best'] / unit)} ({number(spread['median'] / unit)})"
            rows.setdefault(label(entry), {})[entry["message_bytes"]] = cell
    table = [["channel", *map(size_name, sizes)]]
    table += [[name, *(cells.get(size, "") for size in sizes)] for name, cells in rows.items()]
    return aligned(table) if rows else ""


# For each payload of a peer, the payloads of Farside figures that may be compared with it.
COMPARABLE = {"copied": ("copied",), "unwritten": ("copied", "unwritten"), "untouched": ("untouched",)}


def is_comparable(ours, rival, measure):
    """Whether a Farside figure may be compared with a peer's. Streams seldom wait."""
    same_wait = measure != LATENCY or ours["wait"] == rival["wait"]
    same_size = ours["message_bytes"] == rival["message_bytes"]
    return same_size and same_wait and ours["payload"] in COMPARABLE[rival["payload"]]


def against(entries):
    """A table of Farside's best channel divided by each peer's figure."""
    ours = [entry for entry in entries if entry["party"] == "farside"]
    table = [["peer", "bytes", "measure", "farside's channel", "ratio"]]
    for rival in entries:
        if rival["party"] == "farside":
            continue
        for measure, word in ((LATENCY, "one way"), (RATE, "rate")):
            if rival.get(measure) is None:
                continue
            best = fastest([entry for entry in ours if is_comparable(entry, rival, measure)], measure)
            if best is None:
                continue
            ratio = best[measure]["best"] / rival[measure]["best"]
            medians = best[measure]["median"] / rival[measure]["median"]
            size = size_name(rival["message_bytes"])
            name = label(best).removeprefix("farside, ")
            table.append([label(rival), size, word, name, f"{ratio:.2f} ({medians:.2f})"])
    return aligned(table) if len(table) > 1 else ""


UNITS = {LATENCY: (1.0, "ns"), RATE: (1e6, "M/s"), BYTES: (1e9, "GB/s")}


STATES = {True: "met", False: "MISSED", None: "not measured"}


def targets(found):
    table = [["target", "peer", "bound", "farside", "channel", "ratio", ""]]
    for each in found:
        unit, word = UNITS[each["measure"]]

        def shown(value):
            return "" if value is None else f"{number(value / unit)} {word}"

        peer = f"{each['peer']} {shown(each['peer_best'])}" if each["peer"] else ""
        ratio = "" if each["ratio"] is None else f"{each['ratio']:.2f} ({each['ratio_of_medians']:.2f})"
        state = STATES[each["met"]]
        special = each["payload"] not in (None, "copied")
        channel = f"{each['channel']}, {each['payload']}" if special else each["channel"] or ""
        if each["met_by_medians"] != each["met"]:
            state += f", medians {STATES[each['met_by_medians']]}"
        table.append(
            [
                each["target"],
                peer,
                shown(each["bound"]),
                shown(each["best"]),
                channel,
                ratio,
                state,
            ]
        )
    return aligned(table)


def aligned(table):
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    return "\n".join(lines)
