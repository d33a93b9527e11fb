"""The command line of `run`, and its steps: install, build, measure in rounds, report."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from . import build, machine, plot, report
from .farside import Farside
from .figures import Figures, set_aside
from .peers import PROGRAM, all_peers, probe
from .processes import Failed, say
from .targets import judge_all

RAN, A_PEER_FAILED = 0, 1  # Wrong usage is 2, by argparse.

EXAMPLES = """\
examples:
  bench/compare/run --peers-only
  bench/compare/run --only farside --only ucx --rounds 9
  bench/compare/run --json --plot channels.svg > channels.json

exit codes: 0 everything requested was measured, whether targets are met or not;
1 a peer (or Farside) failed; 2 wrong usage; 130 interrupted"""


@dataclass(frozen=True)
class Setup:
    """Parameters of a peer's measurement."""

    windows: int
    processors: tuple


def arguments(words):
    parser = argparse.ArgumentParser(
        prog="bench/compare/run",
        description="Compares Farside's channels with UCX, OpenMPI, iceoryx2, sockets and the bare "
        "machine, between two processes on two processors, in interleaved rounds of one run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--peers-only", action="store_true", help="leave Farside out")
    names = ["farside", *(peer.name for peer in all_peers())]
    parser.add_argument("--only", action="append", choices=names, help="measure this one; may be repeated")
    parser.add_argument("--rounds", type=positive, default=12, help="rounds over all parties (default 12)")
    parser.add_argument("--windows", type=positive, default=8, help="windows of each figure and round (default 8)")
    parser.add_argument("--processors", type=two_processors, metavar="A,B", help="where the two processes run")
    parser.add_argument("--farside", metavar="PROGRAM", help="a farside command that is already built")
    parser.add_argument("--no-install", action="store_true", help="install nothing; say what is missing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", metavar="FILE", type=drawing, help="also plot the result, as .svg or .png")
    asked = parser.parse_args(words)
    if asked.peers_only and asked.only and "farside" in asked.only:
        parser.error("--peers-only and --only farside exclude each other")
    asked.processors = asked.processors or machine.processors()
    if asked.processors is None:
        parser.error("two processors are needed, but this process may use only one")
    if not machine.allows(asked.processors):
        parser.error("this process may not use these processors")
    return asked


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def two_processors(text):
    try:
        first, second = (int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError("two numbers separated by a comma") from error
    if first == second or min(first, second) < 0:
        raise argparse.ArgumentTypeError("two different processors")
    return first, second


def drawing(text):
    if Path(text).suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError("a file name that ends with .svg or .png")
    return text


def parties(asked):
    """The parties to measure: Farside and its peers, as requested."""
    found = all_peers()
    if not asked.peers_only:
        found.insert(0, Farside(asked.farside))
    return [party for party in found if not asked.only or party.name in asked.only]


def prepare(asked, folders, wanted, failures):
    """Installs and builds the parties; returns the versions of those that can be measured."""
    versions = {}
    for party in wanted:
        say(f"{party.name}: installing and building")
        try:
            build.install(party, not asked.no_install)
            versions[party.name] = party.prepare(folders)
        except Failed as error:
            failures[party.name] = str(error)
            say(f"{party.name} FAILED: {error}")
    return versions


def measure(asked, setup, ready, ask_probe, failures):
    """Measures in rounds, each of which starts with a different party. Returns the figures, and the probes
    before and after each party's measurement."""
    figures = Figures()
    probes = {party.name: {} for party in ready}
    for number in range(asked.rounds):
        for at in range(len(ready)):
            party = ready[(at + number) % len(ready)]
            if party.name in failures:
                continue
            say(f"round {number + 1} of {asked.rounds}: {party.name}")
            try:
                before = ask_probe()
                for entry in party.measure(setup):
                    figures.add(party.name, entry, number)
                probes[party.name][number] = [before, ask_probe()]
            except Failed as error:
                failures[party.name] = str(error)
                say(f"{party.name} FAILED: {error}")
    return figures, probes


def main(words):
    asked = arguments(words)
    failures = {}
    wanted = parties(asked)
    setup = Setup(asked.windows, asked.processors)
    folders = build.Folders(Path(__file__).resolve().parent.parent)
    try:
        ask_probe = probe(folders, setup)
    except Failed as error:
        say(f"{PROGRAM} FAILED: {error}")
        return A_PEER_FAILED
    versions = prepare(asked, folders, wanted, failures)
    busy_before = machine.busy_share(asked.processors)
    ready = [party for party in wanted if party.name in versions]
    figures, probes = measure(asked, setup, ready, ask_probe, failures)
    aside = set_aside(probes)
    entries = figures.merged(aside)
    order = {party.name: at for at, party in enumerate(wanted)}
    entries.sort(key=lambda entry: (order[entry["party"]], entry["channel"], entry["message_bytes"]))
    result = {
        "setup": {
            "processor": machine.model(),
            "processors": list(asked.processors),
            "rounds": asked.rounds,
            "windows": asked.windows,
            "busy_before": busy_before,
            "busy_after": machine.busy_share(asked.processors),
        },
        "versions": versions,
        "probes": probes,
        "set_aside": sorted(aside),
        "figures": entries,
        "targets": judge_all(entries),
        "failures": failures,
    }
    print(json.dumps(result) if asked.json else report.text(result))
    if asked.plot:
        try:
            plot.draw(result, asked.plot, not asked.no_install)
        except Failed as error:
            failures["plot"] = str(error)
            say(f"plot FAILED: {error}")
    return A_PEER_FAILED if failures else RAN
