"""Owns the three streams: data to stdout, everything else to stderr, questions only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Final, TextIO

from smgate.cli import failures

BOLD: Final = "1"
RED: Final = "31"
YELLOW: Final = "33"
DIM: Final = "2"
WIDTH_MIN: Final = 40
"""On a narrower terminal lines are left to it: folded, they would be a column of words."""
_FOLDED: Final = "    "
"""Before what goes on from the line above, so that names stand alone on the left."""
_CLEAR: Final = "\x1b[H\x1b[2J"
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """Text from elsewhere, on one line, without anything that could steer a terminal."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        character if character.isprintable() and character not in _BIDI else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return " " if character in "\n\r\t" else f"\\x{ord(character):02x}"


def folded(line: str, width: int | None) -> list[str]:
    """A line as lines of at most so many characters, broken between cells, else between words.

    A cell, which two blanks end, that does not fit begins a line of its own. No word is broken.
    """
    if width is None or width < WIDTH_MIN or len(line) <= width:
        return [line]
    import re
    import textwrap

    indent = line[: len(line) - len(line.lstrip())]
    done, current = [], indent
    for cell, gap in re.findall(r"(\S+(?: \S+)*)(\s*)", line):
        if len(current) + len(cell) > width:
            if current.strip():
                done.append(current.rstrip())
                current = indent + _FOLDED
            *whole, current = textwrap.wrap(
                cell,
                width,
                initial_indent=current,
                subsequent_indent=indent + _FOLDED,
                break_long_words=False,
                break_on_hyphens=False,
            )
            done += whole
        else:
            current += cell
        current += gap
    return [*done, current.rstrip()]


class Console:
    """Where a command reads and writes."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        asked: TextIO | None = None,
        terminal: bool | None = None,
    ) -> None:
        self.out: Final = sys.stdout if out is None else out
        self.err: Final = sys.stderr if err is None else err
        self.asked: Final = sys.stdin if asked is None else asked
        self._environ: Final = environ
        self._terminal: Final = terminal
        self.quiet = False
        self.no_color = False
        self.json_errors = False

    def is_terminal(self, stream: TextIO) -> bool:
        """Whether a person is at the other end."""
        return stream.isatty() if self._terminal is None else self._terminal

    @property
    def can_ask(self) -> bool:
        """A question needs someone to read it and someone to answer."""
        return self.is_terminal(self.asked) and self.is_terminal(self.err)

    @property
    def can_redraw(self) -> bool:
        """Whether the screen may be cleared."""
        return self.is_terminal(self.out) and self._environ.get("TERM", "") != "dumb"

    def styled(self, text: str, style: str, *, stream: TextIO) -> str:
        """Add a style where the stream shows it. A word or symbol always says the same."""
        return f"\x1b[{style}m{text}\x1b[0m" if self._colored(stream) else text

    def data(self, text: str) -> None:
        """One piece of what was asked for."""
        print(text, file=self.out)

    def told(self, line: str, *, style: str | None = None) -> None:
        """One line for a person; on a terminal it is folded between words, and no name is broken."""
        for one in folded(line, self._width()):
            self.data(one if style is None else self.styled(one, style, stream=self.out))

    def _width(self) -> int | None:
        """Characters of a line where a person reads it; None where a program does."""
        if not self.is_terminal(self.out):
            return None
        given = self._environ.get("COLUMNS", "")
        if given.isascii() and given.isdigit():
            return int(given)
        try:
            return os.get_terminal_size(self.out.fileno()).columns
        except (OSError, ValueError):
            return None

    def flush(self) -> None:
        """Give the reader what there is."""
        self.out.flush()

    def redraw(self) -> None:
        """Begin a new picture."""
        self.out.write(_CLEAR)

    def note(self, text: str) -> None:
        """Something beside the data."""
        if not self.quiet:
            print(self.styled(text, DIM, stream=self.err), file=self.err)

    def say(self, text: str) -> None:
        """Something a person must read before answering."""
        print(text, file=self.err)

    def warn(self, text: str) -> None:
        """Something that is not as it should be, but stops nothing."""
        print(f"{self.styled('warning:', YELLOW, stream=self.err)} {text}", file=self.err)

    def ask(self, question: str) -> str:
        """The answer, without surrounding blanks; empty at the end of input."""
        self.err.write(f"{question} ")
        self.err.flush()
        return self.asked.readline().strip()

    def fail(self, error: failures.CliError) -> None:
        """Tell a failure, for people or, with -o json, for a program."""
        self.flush()
        if self.json_errors:
            problem = {
                "code": error.code,
                "message": error.what,
                "cause": error.cause,
                "next_step": error.hint,
                "exit_code": error.exit_code,
            }
            print(json.dumps({"error": problem}, ensure_ascii=False), file=self.err)
            return
        print(f"{self.styled('error:', RED, stream=self.err)} {clean(error.what)}", file=self.err)
        if error.cause:
            print(f"cause: {clean(error.cause)}", file=self.err)
        if error.hint:
            print(f"hint: {clean(error.hint)}", file=self.err)

    def _colored(self, stream: TextIO) -> bool:
        if self.no_color or self._environ.get("NO_COLOR"):
            return False
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
            if self._environ.get(name, "0") not in ("", "0"):
                return True
        return self.is_terminal(stream) and self._environ.get("TERM", "") != "dumb"
