"""Farside as a party of the comparison. No other module uses its command line."""

import json

from . import build
from .figures import fault
from .processes import Failed, output

PACKAGE = "farside-cli"
PROGRAM = "farside"
TIMEOUT_S = 300
# The least number that the command accepts.
WINDOWS_MIN = 8
# One sender and one receiver.
PAIR = "1:1"


def entries(program, setup):
    """Runs `farside bench channels --json` and returns its figures, in the form of figures.py.

    The command prints one object with the member "figures", a list of entries. It is started on the two
    processors and binds one of its two processes to each. Entries of patterns other than 1:1 are left out:
    no peer is measured with them.
    """
    windows = max(setup.windows, WINDOWS_MIN)
    command = [program, "bench", "channels", "--json", "--pattern", PAIR, "--windows", str(windows)]
    text = output(command, TIMEOUT_S, set(setup.processors))
    try:
        figures = json.loads(text)["figures"]
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"farside bench channels --json printed no object with figures: {error!r}") from error
    for number, entry in enumerate(figures):
        wrong = fault(entry)
        if wrong:
            raise Failed(f"figure {number} of farside bench channels {wrong}: {json.dumps(entry)}")
    return [entry for entry in figures if entry.get("pattern", PAIR) == PAIR]


class Farside:
    """Farside, with the interface of a peer."""

    name = "farside"
    sentence = "the channels under comparison"
    packages = ()
    tools = ()

    def __init__(self, program):
        self._program = program

    def prepare(self, folders):
        """Builds the command unless one was given."""
        if self._program is None:
            self._program = build.cargo(folders.project, PACKAGE, PROGRAM)
        return output([self._program, "--version"], 10).strip()

    def measure(self, setup):
        return entries(self._program, setup)
