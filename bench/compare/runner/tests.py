"""Tests of parsing, merging and judging: python3 -m unittest runner.tests"""

import contextlib
import io
import json
import os
import tempfile
import unittest

from . import applications, command, farside, peers, report, targets
from .figures import BYTES, LATENCY, RATE, Figures, fault, set_aside
from .processes import Failed, output


def entry(channel="ring", size=64, payload="copied", wait="spin", **measures):
    return {"channel": channel, "message_bytes": size, "payload": payload, "wait": wait} | measures


def spread(best, median=None):
    return {"best": best, "median": median or best}


def merged(*pairs):
    """Merges entries of one or more rounds, as for the report."""
    figures = Figures()
    for party, each in pairs:
        figures.add(party, each)
    return figures.merged()


class FiguresOfRounds(unittest.TestCase):
    def test_merged_figure_has_best_of_rounds_and_median_of_medians(self):
        rounds = [spread(100, 150), spread(90, 400), spread(95, 120)]
        found = merged(*(("ucx", entry(latency_ns=each)) for each in rounds))
        self.assertEqual(found[0][LATENCY], {"best": 90, "median": 150, "rounds": [150, 400, 120]})

    def test_best_of_many_rounds_is_left_out(self):
        numbers = [400, 76, 390, 410, 420, 395]
        found = merged(*(("ucx", entry(latency_ns=spread(number))) for number in numbers))
        self.assertEqual(found[0][LATENCY]["best"], 390)
        found = merged(*(("ucx", entry(messages_per_second=spread(number))) for number in numbers))
        self.assertEqual(found[0][RATE]["best"], 410)

    def test_the_best_rate_is_the_highest(self):
        rounds = [spread(5e6, 4e6), spread(7e6, 1e6)]
        found = merged(*(("ucx", entry(messages_per_second=each)) for each in rounds))
        self.assertEqual((found[0][RATE]["best"], found[0][RATE]["median"]), (7e6, 2.5e6))

    def test_latency_and_rate_of_one_channel_are_one_entry(self):
        parts = (entry(latency_ns=spread(1)), entry(messages_per_second=spread(2)))
        found = merged(*(("ucx", part) for part in parts))
        self.assertEqual(len(found), 1)
        self.assertEqual((found[0][LATENCY]["best"], found[0][RATE]["best"]), (1, 2))

    def test_rounds_on_one_core_are_set_aside(self):
        probes = {
            "ucx": {0: [100, 95], 1: [90, 27], 2: [105, 300]},
            "bare": {0: [101, 99], 1: [98, 97], 2: [110, 100]},
            "openmpi": {1: [27, 27]},
        }
        aside = set_aside(probes)
        self.assertEqual(aside, {("ucx", 1)}, "a party keeps its only round")
        figures = Figures()
        for number, time in enumerate((400, 150, 420)):
            figures.add("ucx", entry(latency_ns=spread(time)), number)
        self.assertEqual(figures.merged(aside)[0][LATENCY]["best"], 400)
        self.assertEqual(figures.merged()[0][LATENCY]["best"], 150)
        self.assertEqual(set_aside({}), set())

    def test_faults_are_named(self):
        self.assertIsNone(fault(entry(latency_ns=spread(1.5))))
        for broken, word in (
            ([], "object"),
            (entry(channel=None, latency_ns=spread(1)), "channel"),
            (entry(size=True, latency_ns=spread(1)), "message_bytes"),
            (entry(payload="eaten", latency_ns=spread(1)), "payload"),
            (entry(wait="sleep", latency_ns=spread(1)), "wait"),
            (entry(), "no measure"),
            (entry(latency_ns=7.0), LATENCY),
            (entry(bytes_per_second={"best": 0, "median": 1}), BYTES),
        ):
            self.assertIn(word, fault(broken), broken)


class ReadingPeers(unittest.TestCase):
    LINES = """\
b.txt,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
ucx-tag:latency:64,4000,0.529,1.581,1.581,38.60,38.60,632363,632363
ucx-tag:stream:64,8000,0.157,0.395,0.395,154.42,154.42,2530042,2500000
ucx-tag:latency:64,4000,0.400,1.581,1.581,38.60,38.60,632363,632363
ucx-tag:latency:64,4000,0.600,1.581,1.581,38.60,38.60,632363,632363
"""

    def test_ucx_percentiles_and_rates(self):
        windows = {}
        for line in self.LINES.splitlines():
            peers.add_window(windows, line)
        latency, stream = peers.entries_of(windows)
        self.assertEqual(latency[LATENCY], {"best": 400.0, "median": 529.0})
        self.assertEqual(stream[RATE], {"best": 2.5e6, "median": 2.5e6})
        self.assertEqual(stream[BYTES]["best"], 1.6e8)

    def test_ucx_without_results_fails(self):
        with self.assertRaises(Failed):
            peers.entries_of({})

    def test_lines_of_our_own_programs(self):
        text = "a word\n" + json.dumps(entry(latency_ns=spread(3))) + "\n"
        self.assertEqual(len(peers.lines_of_json(text)), 1)
        for broken in ("", "a word\n", json.dumps(entry())):
            with self.assertRaises(Failed):
                peers.lines_of_json(broken)

    def test_a_program_that_fails_or_hangs_is_reported(self):
        with self.assertRaisesRegex(Failed, "ended with 3:\nwhy"):
            output(["sh", "-c", "echo why >&2; exit 3"], 10)
        with self.assertRaisesRegex(Failed, "more than"):
            output(["sh", "-c", "while :; do :; done"], 0.2)
        with self.assertRaisesRegex(Failed, "no-such-program"):
            output(["no-such-program"], 1)


class Targets(unittest.TestCase):
    def judge(self, sentence, *pairs):
        target = next(each for each in targets.TARGETS if each.sentence.startswith(sentence))
        return target.judge(merged(*pairs))

    def test_an_absolute_bound_is_for_rings_only(self):
        ring = ("farside", entry(latency_ns=spread(120, 140)) | {"family": "ring_buffer"})
        slot = ("farside", entry("slot", latency_ns=spread(50)) | {"family": "write_slot"})
        found = self.judge("64 B one way, best ring: at most 130", ring, slot)
        self.assertEqual((found["channel"], found["best"]), ("ring", 120))
        self.assertEqual((found["met"], found["met_by_medians"]), (True, False))
        self.assertIsNone(self.judge("64 B one way, best ring: at most 130", slot)["met"])

    def test_times_are_bounded_from_above_and_rates_from_below(self):
        ours = ("farside", entry(messages_per_second=spread(40e6)))
        for peer, met in ((7e6, True), (9e6, False)):
            rival = ("openmpi", entry("openmpi", payload="unwritten", messages_per_second=spread(peer)))
            found = self.judge("64 B message rate", ours, rival)
            self.assertEqual((found["met"], found["bound"]), (met, 5 * peer))
        ours = ("farside", entry(size=65536, latency_ns=spread(4000)))
        rivals = [
            ("ucx", entry("ucx-tag-cma", 65536, "unwritten", latency_ns=spread(4500))),
            ("openmpi", entry("openmpi", 65536, "unwritten", latency_ns=spread(3900))),
        ]
        found = self.judge("64 KiB one way:", ours, *rivals)
        self.assertEqual((found["peer"], found["met"]), ("openmpi", False))
        alike = ("farside", entry(size=65536, payload="unwritten", latency_ns=spread(3800)))
        found = self.judge("64 KiB one way:", ours, alike, *rivals)
        self.assertEqual((found["payload"], found["met"]), ("unwritten", True))
        written = ("openmpi", entry("openmpi-written", 65536, latency_ns=spread(9000)))
        found = self.judge("64 KiB one way, written", ours, alike, written)
        self.assertEqual((found["payload"], found["best"]), ("copied", 4000))

    def test_blocking_is_compared_with_blocking(self):
        futex = ("bare", entry("bare-futex", 8, wait="block", latency_ns=spread(5000)))
        spinning = ("farside", entry(latency_ns=spread(100)))
        blocking = ("farside", entry(wait="block", latency_ns=spread(5400)))
        found = self.judge("blocking request", futex, spinning, blocking)
        self.assertEqual((found["best"], found["met"]), (5400, True))

    def test_target_without_figures_is_neither_met_nor_missed(self):
        for found in targets.judge_all([]):
            self.assertIsNone(found["met"])


class FarsideSide(unittest.TestCase):
    """Runs `farside.entries` on a script in place of the command."""

    def program(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "farside")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\ncase \"$1\" in --version) echo farside 0;; *) cat <<'END'\n{text}\nEND\nesac\n")
        os.chmod(path, 0o700)
        return path

    def setup_here(self):
        return command.Setup(windows=8, processors=tuple(sorted(os.sched_getaffinity(0))[:2]))

    def test_entries_have_the_form_of_the_peers(self):
        given = entry(latency_ns=spread(110)) | {"family": "ring_buffer"}
        text = json.dumps({"figures": [given], "remarks": []})
        self.assertEqual(farside.entries(self.program(text), self.setup_here()), [given])

    def test_other_patterns_are_left_out_and_null_is_accepted(self):
        pair = entry(latency_ns=spread(110), messages_per_second=None) | {"pattern": "1:1"}
        many = entry(messages_per_second=spread(9e6)) | {"pattern": "N:1"}
        text = json.dumps({"figures": [pair, many]})
        self.assertEqual(farside.entries(self.program(text), self.setup_here()), [pair])

    def test_invalid_output_is_refused(self):
        for text in ("no json", "[]", "{}", json.dumps({"figures": [entry()]})):
            with self.assertRaises(Failed, msg=text):
                farside.entries(self.program(text), self.setup_here())


class CommandLine(unittest.TestCase):
    def test_wrong_usage_exits_with_2(self):
        for words in (
            ["--only", "unknown"],
            ["--rounds", "0"],
            ["--plot", "x.gif"],
            ["--processors", "1,1"],
            ["--processors", "0,99999"],
            ["--peers-only", "--only", "farside"],
            ["more"],
        ):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as stop:
                command.arguments(words)
            self.assertEqual(stop.exception.code, 2, words)

    def test_only_and_peers_only_select_parties(self):
        words = ["--only", "ucx", "--only", "bare"]
        self.assertEqual([each.name for each in command.parties(command.arguments(words))], ["bare", "ucx"])
        asked = command.arguments(["--peers-only"])
        self.assertNotIn("farside", [each.name for each in command.parties(asked)])


class Report(unittest.TestCase):
    def test_ratios_compare_equal_payloads(self):
        entries = merged(
            ("farside", entry("ring", latency_ns=spread(100))),
            ("farside", entry("slot", payload="untouched", latency_ns=spread(50))),
            ("farside", entry("ring", payload="unwritten", latency_ns=spread(80))),
            ("openmpi", entry("openmpi-written", latency_ns=spread(400))),
            ("ucx", entry("ucx-tag", payload="unwritten", latency_ns=spread(400))),
            ("iceoryx2", entry("iceoryx2-loan", payload="untouched", latency_ns=spread(500))),
        )
        lines = [line.split() for line in report.against(entries).splitlines()[1:]]
        self.assertEqual([(line[0], line[-3], line[-2]) for line in lines],
                         [("openmpi-written", "ring", "0.25"), ("ucx-tag,", "unwritten", "0.20"),
                          ("iceoryx2-loan,", "untouched", "0.10")])


class Applications(unittest.TestCase):
    def test_target_is_judged_by_the_fastest_peer_and_the_best_round(self):
        target = applications.Target("join", "a join", "ours", ("slow", "fast"), 0.5)
        rounds = {"ours": (8, 4), "slow": (30, 20), "fast": (10, 10)}
        figures = {
            name: [{applications.BEST: best, applications.MEDIAN: 2 * best} for best in bests]
            for name, bests in rounds.items()
        }
        found = applications.judge(target, figures)
        self.assertEqual((found["peer"], found["ratio"], found["met"]), ("fast", 0.4, True))
        self.assertEqual(found["ratio_of_medians"], 12 / 20)

    def test_every_target_has_a_test_and_times_have_units(self):
        self.assertEqual({target.test for target in applications.TARGETS}, set(applications.TESTS))
        shown = [applications.shown(ns) for ns in (39.6, 1_260, 145e6, 1.55e9)]
        self.assertEqual(shown, ["39.6 ns", "1.26 us", "145 ms", "1.55 s"])


if __name__ == "__main__":
    unittest.main()
