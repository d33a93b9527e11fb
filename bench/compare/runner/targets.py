"""Targets of Farside's channels, judged by the best windows and by the medians."""

from dataclasses import dataclass

from .figures import BYTES, LATENCY, RATE, best_of_entries, fastest

RINGS = ("ring_buffer", "shared_ring_buffer", "read_ring_buffer")


@dataclass(frozen=True)
class Target:
    """A bound for the fastest of some Farside figures: absolute, or a multiple of a peer's figure."""

    sentence: str
    measure: str
    message_bytes: int
    # Payloads of the Farside figures that count.
    payloads: tuple = ("copied",)
    wait: str = "spin"
    rings_only: bool = False
    # The best of these channels gives the bound; without any, the bound is absolute.
    peers: tuple = ()
    # The peer's message size, if it differs from Farside's.
    peer_bytes: int | None = None
    # Factor on the peer's figure, or the absolute bound.
    factor: float = 1.0

    def candidates(self, entries):
        """The Farside figures that may meet it."""
        return [
            entry
            for entry in entries
            if entry["party"] == "farside"
            and (entry["message_bytes"], entry["wait"]) == (self.message_bytes, self.wait)
            and entry["payload"] in self.payloads
            and (not self.rings_only or entry.get("family") in RINGS)
        ]

    def judge(self, entries):
        """The result, as a dictionary for the report."""
        size = self.message_bytes if self.peer_bytes is None else self.peer_bytes
        ours = fastest(self.candidates(entries), self.measure)
        rivals = [
            entry
            for entry in entries
            if entry["channel"] in self.peers
            and (entry["message_bytes"], entry["wait"]) == (size, self.wait)
            and entry.get(self.measure) is not None
        ]
        rival = best_of_entries(self.measure, rivals) if rivals else None
        found = {
            "target": self.sentence,
            "measure": self.measure,
            "peer": rival["channel"] if rival else None,
            "peer_best": rival[self.measure]["best"] if rival else None,
            "bound": self._bound(rival),
            "channel": ours["channel"] if ours else None,
            "payload": ours["payload"] if ours else None,
            "best": ours[self.measure]["best"] if ours else None,
            "median": ours[self.measure]["median"] if ours else None,
            "ratio": None,
            "ratio_of_medians": None,
            "met": None,
            "met_by_medians": None,
        }
        if ours and rival:
            found["ratio"] = found["best"] / found["peer_best"]
            found["ratio_of_medians"] = found["median"] / rival[self.measure]["median"]
        if ours and found["bound"] is not None:
            found["met"] = self._meets(found["best"], found["bound"])
            found["met_by_medians"] = self._meets(found["median"], self._bound(rival, "median"))
        return found

    def _meets(self, number, bound):
        """A time is bounded from above, a rate from below."""
        return number <= bound if self.measure == LATENCY else number >= bound

    def _bound(self, rival, which="best"):
        if not self.peers:
            return self.factor
        return rival[self.measure][which] * self.factor if rival else None


TARGETS = (
    Target("64 B one way, best ring: at most 130 ns", LATENCY, 64, rings_only=True, factor=130.0),
    Target(
        "64 B one way, best ring: at most 0.6 of UCX",
        LATENCY,
        64,
        rings_only=True,
        peers=("ucx-tag",),
        factor=0.6,
    ),
    Target(
        "64 B message rate: at least 5 times OpenMPI's",
        RATE,
        64,
        peers=("openmpi", "openmpi-written"),
        factor=5.0,
    ),
    Target("1 KiB stream: at least 2.5 times UCX's", BYTES, 1024, peers=("ucx-tag",), factor=2.5),
    Target(
        "64 KiB one way: at most the best peer's single copy",
        LATENCY,
        64 << 10,
        payloads=("copied", "unwritten"),
        peers=("ucx-tag", "ucx-tag-cma", "openmpi"),
    ),
    Target(
        "64 KiB one way, written: at most the best peer's",
        LATENCY,
        64 << 10,
        peers=("openmpi-written", "iceoryx2-copy", "socket"),
    ),
    Target(
        "64 KiB zero-copy hand-over: under 1 us",
        LATENCY,
        64 << 10,
        payloads=("untouched",),
        factor=1000.0,
    ),
    Target(
        "blocking request and reply: at most 1.1 futex round trips",
        LATENCY,
        64,
        wait="block",
        peers=("bare-futex",),
        peer_bytes=8,
        factor=1.1,
    ),
)


def judge_all(entries):
    return [target.judge(entries) for target in TARGETS]
