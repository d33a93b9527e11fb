"""Installs and builds the measured programs."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .processes import Failed, output, say

INSTALL_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Folders:
    """Folders of sources."""

    compare: Path

    @property
    def project(self):
        """Farside's own workspace."""
        return self.compare.parent.parent


def install(peer, allowed):
    """Installs a peer's Debian packages if one of its programs is missing."""
    missing = [tool for tool in peer.tools if not shutil.which(tool)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *peer.packages]
    text = f"{', '.join(missing)} missing; to install: {' '.join(command)}"
    if not allowed or os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Failed(text)
    say(f"{peer.name}: {text}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    output(["apt-get", "update"], INSTALL_TIMEOUT_S, environment=quiet)
    output(command, INSTALL_TIMEOUT_S, environment=quiet)


def cargo(workspace, package, program):
    """Builds a program in release mode and returns its path."""
    command = ["cargo", "build", "--release", "--package", package, "--bin", program]
    lines = output([*command, "--message-format", "json"], BUILD_TIMEOUT_S, cwd=workspace)
    for line in lines.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            if message["target"]["name"] == program:
                return message["executable"]
    raise Failed(f"cargo has built no {program}")


def locked_version(workspace, package):
    """The version of a crate in a workspace's lock file."""
    import tomllib

    lock = tomllib.loads((workspace / "Cargo.lock").read_text())
    found = [each["version"] for each in lock["package"] if each["name"] == package]
    return found[0] if found else "unknown"
