"""The loop: tokens through solvers, block by block. Read this first.

A `Source` yields blocks of tokens; each `Track` folds a block into its solver's state and says what
happened at every step; a `Frame` carries both. Recording, printing and measuring are consumers of
frames: the loop does not know that it is watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.frames import Frame
from engine.sources import Source
from engine.track import Track


def loop(source: Source, tracks: Sequence[Track], block: int) -> Iterator[Frame]:
    """Stream a source through tracks and yield a frame per block of steps.

    Parameters
    ----------
    source : Source
        The stream.
    tracks : sequence of Track
        The solvers; each keeps its state between frames.
    block : int
        Steps per frame; it changes no number.
    """
    for tokens in source.blocks(block):
        yield Frame(tokens, {track.label: track.advance(tokens) for track in tracks})
