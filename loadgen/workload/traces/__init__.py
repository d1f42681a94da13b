"""Request traces: when each request came, and how long it was. One reader a family of formats, told by their content.

source   a file's lines, of any size, also gzipped           ──► flat, texts, chains, servegen
open     which format it is                                  ──► rows, in the file's order
timing   in the order of their times, spread and scaled      ──► replayed
looking  what there is of it, or its beginning, before it is sent
linked   which of its rows waits for which                   ──► replayed
replayed when and what                                       ──► arrivals and prompts
"""

from .describe import Summary, describe_trace
from .open import Trace, open_trace
from .row import Mapped, TraceRow, parse_map

__all__ = ["Mapped", "Summary", "Trace", "TraceRow", "describe_trace", "open_trace", "parse_map"]
