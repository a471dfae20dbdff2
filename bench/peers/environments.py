"""A virtual environment for each peer, in ``.venv-peers/``; made once, and again when its requirements change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.catalog import Peer

FOLDER = Path(__file__).resolve().parents[2] / ".venv-peers"
INSTALL_SECONDS = 600


class Missing(Exception):
    """A peer that cannot be measured here, and why."""


def python(peer: Peer) -> Path:
    """The interpreter of the peer's environment. Raises `Missing`."""
    place = FOLDER / peer.folder
    program, stamp = place / "bin" / "python", place / "requirements"
    wanted = "\n".join(peer.requirements)
    if stamp.exists() and stamp.read_text() == wanted and program.exists():
        return program
    shutil.rmtree(place, ignore_errors=True)
    base = _interpreter(peer.python)
    if _run([base, "-c", "import ensurepip"]) is None:
        _must([base, "-m", "venv", str(place)], "no virtual environment")
    else:  # Debian keeps ensurepip in a package of its own
        _must([base, "-m", "venv", "--without-pip", str(place)], "no virtual environment")
        _must([sys.executable, "-m", "pip", "--python", str(program), "install", "--quiet", "pip"], "no pip")
    if peer.requirements:
        _must([str(program), "-m", "pip", "install", "--quiet", *peer.requirements], "it cannot be installed")
    stamp.write_text(wanted)
    return program


def version(peer: Peer, program: Path) -> str:
    """The installed version of what is measured; Python's own for what comes with it."""
    package = peer.requirements[0].partition("[")[0] if peer.requirements else None
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run(
        [program, "-c", code if package else "import platform; print('Python', platform.python_version())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def _interpreter(oldest: tuple[int, int]) -> str:
    """The oldest interpreter here that is new enough. Raises `Missing`."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(oldest[1], oldest[1] + 4):
        name = f"python3.{minor}"
        managed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))
        for candidate in (shutil.which(name), *map(str, managed)):
            if candidate and _run([candidate, "-c", "pass"]) is None:
                return candidate
    raise Missing(f"it needs Python {oldest[0]}.{oldest[1]}, and there is none here")


def _must(command: list[str], otherwise: str) -> None:
    if (problem := _run(command)) is not None:
        raise Missing(f"{otherwise}: {problem}")


def _run(command: list[str]) -> str | None:
    """None if it went well, else the last line of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
    errors = [line for line in said if line.startswith("ERROR")]
    return (errors or said)[-1].removeprefix("ERROR: ")
