"""Figures of all rounds and what becomes of them.

An entry is a dictionary, the same for Farside and all peers:

    channel              name
    family               Farside only: the family of the channel, such as "ring_buffer"
    message_bytes        bytes of a message
    payload              "copied": the sender writes every byte, the receiver copies every byte out
                         "unwritten": the receiver gets a copy of what lies in the sender's buffer
                         "untouched": handed over where it lies
    wait                 "spin" or "block"
    latency_ns           {"best", "median"}: one way, half of the round trip
    messages_per_second  {"best", "median"}: of a stream
    bytes_per_second     {"best", "median"}: of a stream

The three measures are there as far as they were measured, at least one of them.
"""

from statistics import median

LATENCY = "latency_ns"
RATE = "messages_per_second"
BYTES = "bytes_per_second"
MEASURES = (LATENCY, RATE, BYTES)
PAYLOADS = ("copied", "unwritten", "untouched")
WAITS = ("spin", "block")


def fault(entry):
    """What is wrong with an entry that another program printed; None when it is sound."""
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


# From so many rounds on, the best one is left out: one freak window is no figure.
ROUNDS_FOR_SECOND_BEST = 6


def best_of_rounds(measure, bests):
    """The best round; the second best where there are rounds enough."""
    ordered = sorted(bests, reverse=measure != LATENCY)
    return ordered[1] if len(ordered) >= ROUNDS_FOR_SECOND_BEST else ordered[0]


class Figures:
    """Collects the entries of all rounds."""

    def __init__(self):
        self._rounds = {}
        self._about = {}

    def add(self, party, entry, turn=0):
        """Takes an entry of one round of this party (a peer, or Farside)."""
        key = (party, entry["channel"], entry["message_bytes"], entry["payload"], entry["wait"])
        about = {name: value for name, value in entry.items() if name not in MEASURES}
        self._about.setdefault(key, {"party": party} | about)
        for measure in MEASURES:
            if entry.get(measure) is not None:
                self._rounds.setdefault((key, measure), []).append((turn, entry[measure]))

    def merged(self, aside=frozenset()):
        """One entry for each figure: best of the rounds, median of their medians. Leaves out rounds
        set aside, pairs of party and turn."""
        entries = []
        for key, about in self._about.items():
            entry = dict(about)
            for measure in MEASURES:
                rounds = [
                    each
                    for turn, each in self._rounds.get((key, measure), [])
                    if (about["party"], turn) not in aside
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
    """The entry with the best figure; None when none has one."""
    having = [entry for entry in entries if entry.get(measure) is not None]
    if not having:
        return None
    return best_of_entries(measure, having)


def best_of_entries(measure, entries):
    choose = min if measure == LATENCY else max
    return choose(entries, key=lambda entry: entry[measure]["best"])


# A bare hand-over in less than this part of its usual time: the host has both processors on one core.
OTHER_PLACEMENT = 0.6


def set_aside(probes):
    """Rounds that were measured with the processors elsewhere than in most: pairs of party and turn.

    `probes` has for each party and turn the bare hand-overs before and after it, in ns. A party keeps
    all of its rounds rather than none.
    """
    everything = [each for turns in probes.values() for pair in turns.values() for each in pair]
    if not everything:
        return set()
    bound = OTHER_PLACEMENT * median(everything)
    aside = set()
    for party, turns in probes.items():
        low = {(party, turn) for turn, pair in turns.items() if min(pair) < bound}
        if len(low) < len(turns):
            aside |= low
    return aside
