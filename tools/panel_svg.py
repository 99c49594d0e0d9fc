#!/usr/bin/env python3
"""Draw the panel of a real pre-training as an animated SVG: docs/pictures/pretrain.svg.

    python tools/panel_svg.py docs/pictures/pretrain.svg

It pre-trains the `demo` recipe on Python's own help, two minutes on one CPU core, in a pseudo-terminal of 100 columns.
The picture shows drawings of the panel evenly chosen from the whole run, the last one longest.

Fonts differ in how wide they draw a character and in whether they have braille at all, and a picture on GitHub cannot
bring its own. So each piece of text is told how long it is, and bars and the curve are drawn as lines and dots.
"""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMAND = "bertworks pretrain demo --data DATA --out RUN train.save_every=500"
BEFORE = (  # as in the README
    "bertworks vocab help.txt --size 2000 --out vocab.txt",
    "bertworks prepare help.txt --vocab vocab.txt --out DATA --holdout 0.05",
)
COLUMNS, ROWS = 100, 30
NUM_FRAMES = 20
FRAME_S, LAST_S = 0.6, 6.0
_DRAWING = re.compile(r"\x1b\[J\n(.*?)\x1b\[\d+A", re.DOTALL)  # as `Panel` writes it: erase, the rows, back to the top
_RUN = re.compile(r"\S+(?: \S+)*")  # text up to the next two spaces
_WIDTH, _HEIGHT, _MARGIN = 8.4, 20, 16  # of a character with its line, and around all of them
_BRAILLE = range(0x2801, 0x2900)
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))  # column and row of each bit, as in Unicode
_STYLE = (
    "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d1d7e0;white-space:pre}"
    ".bold{font-weight:600;fill:#f6f8fa}.dim{fill:#9198a1}"
    "path{fill:none;stroke:#d1d7e0;stroke-width:1.5}path.dim{stroke:#3d444d}path.cyan{stroke:#39c5cf}"
    "path.heavy{stroke-width:4}path.dots{stroke-width:3.2;stroke-linecap:round}"
)


def record(folder: Path) -> tuple[list[str], float]:
    """Pre-train in this empty folder; return every drawing of the panel, with its colours, and the seconds."""
    from pydoc_data.topics import topics

    (folder / "help.txt").write_text("\n\n".join(topics.values()), encoding="utf-8")
    left_out = {"COLUMNS", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    environment["OMP_NUM_THREADS"] = (
        "1"  # on a busy machine two threads wait for each other, and the run takes far longer
    )

    def arguments(command: str) -> list[str]:
        return [sys.executable, "-m", *shlex.split(command)]

    for command in BEFORE:
        subprocess.run(arguments(command), cwd=folder, env=environment, check=True)  # noqa: S603
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started = time.monotonic()
    process = subprocess.Popen(arguments(COMMAND), cwd=folder, env=environment, stdout=theirs, stderr=theirs)  # noqa: S603
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end was closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    written = b"".join(chunks).decode()
    if process.wait():
        raise SystemExit(f"{COMMAND} failed:\n{written}")
    return drawings_of(written), time.monotonic() - started


def drawings_of(written: str) -> list[str]:
    """Return each drawing of the panel in what was written to a terminal."""
    return _DRAWING.findall(written.replace("\r\n", "\n"))


def chosen(drawings: list[str], count: int = NUM_FRAMES) -> list[str]:
    """Return this many drawings, evenly from the first to the last."""
    count = min(count, len(drawings))
    return [drawings[round(number * (len(drawings) - 1) / max(count - 1, 1))] for number in range(count)]


def elements(drawing: str, first_row: int) -> Iterator[str]:
    """Yield the parts of a picture that show one drawing of the panel."""
    console = Console(width=COLUMNS, color_system=None)
    for number, line in enumerate(drawing.splitlines()):
        top, column = _MARGIN + (first_row + number) * _HEIGHT, 0
        for segment in Text.from_ansi(line).render(console):
            yield from _of_segment(segment, column, top)
            column += len(segment.text)


def _of_segment(segment: Segment, column: int, top: int) -> Iterator[str]:
    style, text = segment.style or Style(), segment.text
    name = "bold" if style.bold else "dim" if style.dim else "cyan" if style.color else ""  # its only colour
    left, middle = _MARGIN + column * _WIDTH, top + _HEIGHT / 2
    if set(text) <= set("━╸") and text:
        yield f'<path class="{name} heavy" d="M{left:g} {middle:g}h{(len(text) - text.count("╸") / 2) * _WIDTH:g}"/>'
    elif set(text) == {"─"}:
        yield f'<path class="{name}" d="M{left:g} {middle:g}h{len(text) * _WIDTH:g}"/>'
    elif any(ord(character) in _BRAILLE for character in text):
        dots = "".join(
            f"M{left + (number + 0.25 + across / 2) * _WIDTH:.1f} {top + (0.125 + down / 4) * _HEIGHT:g}h0"
            for number, character in enumerate(text)
            for bit, (across, down) in enumerate(_DOTS)
            if ord(character) in _BRAILLE and ord(character) >> bit & 1
        )
        yield f'<path class="{name} dots" d="{dots}"/>'
    else:
        for run in _RUN.finditer(text):
            yield _text(run[0], left + run.start() * _WIDTH, top, name)


def _text(text: str, left: float, top: int, name: str = "") -> str:
    named = f' class="{name}"' if name else ""
    return f'<text{named} x="{left:g}" y="{top + 15}" textLength="{len(text) * _WIDTH:g}">{escape(text)}</text>'


def picture(command: str, drawings: list[str], seconds: float) -> str:
    """Return an SVG that shows the drawings one after the other, again and again.

    Where nothing moves (by the reader's wish, or in a viewer without animation) it shows the last drawing.
    """
    frames = [list(elements(drawing, first_row=2)) for drawing in drawings]
    always = set.intersection(*map(set, frames))
    duration = FRAME_S * (len(frames) - 1) + LAST_S
    groups, moves = [], []
    for number, frame in enumerate(frames):
        begin, end = (100 * FRAME_S * part / duration for part in (number, number + 1))
        is_last = number == len(frames) - 1
        steps = f"0%{{visibility:{'hidden' if number else 'visible'}}}{begin:.2f}%{{visibility:visible}}"
        steps += "" if is_last else f"{end:.2f}%{{visibility:hidden}}"
        moves.append(f"@keyframes f{number}{{{steps}}}")
        moves.append(f"#f{number}{{animation:f{number} {duration:g}s step-end infinite}}")
        hidden = "" if is_last else ' visibility="hidden"'
        groups.append(f'<g id="f{number}"{hidden}>{"".join(part for part in frame if part not in always)}</g>')
    width = round(2 * _MARGIN + COLUMNS * _WIDTH)
    height = 2 * _MARGIN + (2 + max(len(drawing.splitlines()) for drawing in drawings)) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-labelledby="title">',
        f'<title id="title">The live panel of bertworks pretrain: {len(drawings)} moments of a run of {seconds:.0f}'
        " seconds. A bar shows its progress; beside losses, accuracies and speed, a curve of the loss falls.</title>",
        f"<style>{_STYLE}@media (prefers-reduced-motion:no-preference){{{''.join(moves)}}}</style>",
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#0d1117" stroke="#3d444d"/>',
        _text("$", _MARGIN + _WIDTH, _MARGIN, "dim") + _text(command, _MARGIN + 3 * _WIDTH, _MARGIN),
        "".join(part for part in frames[-1] if part in always),
        *groups,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        drawings, seconds = record(Path(folder))
    Path(sys.argv[1]).write_text(picture(COMMAND, chosen(drawings), seconds), encoding="utf-8")
