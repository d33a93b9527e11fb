"""Figures of all rounds, and how they are merged.

An entry is a dictionary, the same for Farside and all peers:

    channel              name
    family               Farside only: the family of the channel, such as "ring_buffer"
    message_bytes        bytes of a message
    payload              "copied": the sender writes every byte, the receiver copies every byte out
                         "unwritten": the receiver gets a copy of a buffer that the sender does not rewrite
                         "untouched": zero-copy, handed over in place
    wait                 "spin" or "block"
    latency_ns           {"best", "median"}: one way, half of the round trip
    messages_per_second  {"best", "median"}: of a stream
    bytes_per_second     {"best", "median"}: of a stream

At least one of the three measures is present.
"""

from statistics import median

LATENCY = "latency_ns"
RATE = "messages_per_second"
BYTES = "bytes_per_second"
MEASURES = (LATENCY, RATE, BYTES)
PAYLOADS = ("copied", "unwritten", "untouched")
WAITS = ("spin", "block")


def fault(entry):
    """What is wrong with an entry that another program printed; None if it is valid."""
    if not isinstance(entry, dict):
        return "is no object"
    if not isinstance(entry.get("channel"), str):
        return "has no channel"
    size = entry.get("message_bytes")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        return "has no message_bytes"
    if entry.get("payload") not in PAYLOADS:
        return f"has a payload that is none of {', '.join(PAYLOADS)}"
    if entry.get("wait") not in WAITS:
        return f"has a wait that is none of {', '.join(WAITS)}"
    given = [measure for measure in MEASURES if entry.get(measure) is not None]
    if not given:
        return "has no measure"
    for measure in given:
        spread = entry[measure]
        numbers = [spread.get("best"), spread.get("median")] if isinstance(spread, dict) else [None]
        if not all(isinstance(n, (int, float)) and not isinstance(n, bool) and n > 0 for n in numbers):
            return f"has a {measure} without positive best and median"
    return None


def best_of(measure, numbers):
    """The shortest time, or the highest rate."""
    return min(numbers) if measure == LATENCY else max(numbers)


# From this number of rounds on, the best one is left out as a possible outlier.
ROUNDS_FOR_SECOND_BEST = 6


def best_of_rounds(measure, bests):
    """The best round; the second best if there are enough rounds."""
    ordered = sorted(bests, reverse=measure != LATENCY)
    return ordered[1] if len(ordered) >= ROUNDS_FOR_SECOND_BEST else ordered[0]


class Figures:
    """Collects the entries of all rounds."""

    def __init__(self):
        self._rounds = {}
        self._about = {}

    def add(self, party, entry, number=0):
        """Adds an entry of this party (a peer, or Farside) from round `number`."""
        key = (party, entry["channel"], entry["message_bytes"], entry["payload"], entry["wait"])
        about = {name: value for name, value in entry.items() if name not in MEASURES}
        self._about.setdefault(key, {"party": party} | about)
        for measure in MEASURES:
            if entry.get(measure) is not None:
                self._rounds.setdefault((key, measure), []).append((number, entry[measure]))

    def merged(self, aside=frozenset()):
        """One entry for each figure: best of the rounds, median of their medians. Leaves out the rounds in
        `aside`, pairs of party and round number."""
        entries = []
        for key, about in self._about.items():
            entry = dict(about)
            for measure in MEASURES:
                rounds = [
                    each
                    for number, each in self._rounds.get((key, measure), [])
                    if (about["party"], number) not in aside
                ]
                if rounds:
                    entry[measure] = {
                        "best": best_of_rounds(measure, [each["best"] for each in rounds]),
                        "median": median(each["median"] for each in rounds),
                        "rounds": [each["median"] for each in rounds],
                    }
            entries.append(entry)
        return entries


def spread(measure, numbers):
    """Best and median of one round's windows."""
    return {"best": best_of(measure, numbers), "median": median(numbers)}


def fastest(entries, measure):
    """The entry with the best figure; None if none has the measure."""
    having = [entry for entry in entries if entry.get(measure) is not None]
    if not having:
        return None
    return best_of_entries(measure, having)


def best_of_entries(measure, entries):
    choose = min if measure == LATENCY else max
    return choose(entries, key=lambda entry: entry[measure]["best"])


# A `bare-line` below this fraction of its median: the host has both processors on one core.
OTHER_PLACEMENT = 0.6


def set_aside(probes):
    """Rounds during which the host placed the processors on one core: pairs of party and round number.

    `probes` has for each party and round the times of `bare-line` before and after it, in ns. If all rounds
    of a party are such, it keeps all of them.
    """
    everything = [each for rounds in probes.values() for pair in rounds.values() for each in pair]
    if not everything:
        return set()
    bound = OTHER_PLACEMENT * median(everything)
    aside = set()
    for party, rounds in probes.items():
        low = {(party, number) for number, pair in rounds.items() if min(pair) < bound}
        if len(low) < len(rounds):
            aside |= low
    return aside
