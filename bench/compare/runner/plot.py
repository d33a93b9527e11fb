"""Draws a result: latency and rate over the size of messages. Needs matplotlib.

    plot.py FILE < result.json
"""

import json
import subprocess
import sys

if __name__ != "__main__":
    from .build import install
    from .processes import Failed


class Drawing:
    """The packages that drawing needs, with the interface of a peer."""

    name = "plot"
    packages = ("python3-matplotlib", "python3")
    tools = ()


def interpreter():
    """A Python that has matplotlib: this one or the system's; None if neither has it."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            found = subprocess.run([candidate, "-c", "import matplotlib"], capture_output=True, check=False)
        except OSError:
            continue
        if found.returncode == 0:
            return candidate
    return None


def draw(result, path, may_install):
    """Writes the plot; the file's name decides between SVG and PNG."""
    if interpreter() is None:
        wanted = Drawing()
        # A name that is no program, so that the package is installed.
        wanted.tools = ("matplotlib",)
        install(wanted, may_install)
    python = interpreter()
    if python is None:
        raise Failed("no Python with matplotlib")
    command = [python, "-B", __file__, path]
    done = subprocess.run(command, input=json.dumps(result), text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed(f"drawing failed:\n{done.stderr[-2000:]}")


def paint(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(14, 7))
    measures = (("latency_ns", "one way, ns, best"), ("messages_per_second", "messages a second, best"))
    for axis, (measure, title) in zip(axes, measures):
        lines = {}
        for entry in result["figures"]:
            if entry.get(measure):
                key = (entry["party"], entry["channel"], entry["payload"], entry["wait"])
                lines.setdefault(key, []).append((entry["message_bytes"], entry[measure]["best"]))
        for (party, channel, payload, wait), points in sorted(lines.items()):
            points.sort()
            style = "-" if party == "farside" else ":" if party == "bare" else "--"
            special = ["untouched"] * (payload == "untouched") + ["blocking"] * (wait == "block")
            name = ", ".join([f"{party}: {channel}", *special])
            axis.plot(*zip(*points), style, marker="o", markersize=3, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("bytes of a message")
        axis.set_title(title)
        axis.grid(True, which="both", alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    paint(json.load(sys.stdin), sys.argv[1])
