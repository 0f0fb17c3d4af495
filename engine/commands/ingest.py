"""`engine ingest`: a file made into a stored stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.commands.options import AsJson
from engine.printing import pipe, print_json


def ingest(
    file: Annotated[
        Path, typer.Argument(help="npz, npy, csv, parquet, safetensors, or a zarr folder.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The store to write.")],
    keys: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns: names, patterns ('x*') or positions ('0:16'), comma-separated."
        ),
    ] = None,
    values: Annotated[list[str] | None, typer.Option(help="Columns, as for --keys.")] = None,
    queries: Annotated[list[str] | None, typer.Option(help="Columns, as for --keys.")] = None,
    mask: Annotated[
        str | None, typer.Option(help="Column that is true where the pair is to be written.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column of time stamps, stored as UTC.")] = None,
    sequence: Annotated[
        str | None, typer.Option(help="Column that tells sequences apart: one trial each.")
    ] = None,
    channel: Annotated[
        list[str] | None, typer.Option(help="Side channels: columns, or NAME=COLUMN.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a store that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store a file as a stream, for generator = "stored"."""
    from engine.ingestion import ingest as store

    tree = store(
        file, out, keys=keys, values=values, queries=queries, mask=mask, time=time,
        sequence=sequence, channels=channel, force=force,
    )  # fmt: skip
    stream = tree["stream"].to_dataset()
    written = int(stream["mask"].sum()) if "mask" in stream else stream["keys"].sizes["step"]
    sizes = {str(d): n for d, n in stream.sizes.items()}
    with pipe():
        if as_json:
            print_json({"store": str(out), "sizes": sizes, "variables": sorted(map(str, stream))})
            return
        told = ", ".join(f"{d} {n}" for d, n in sizes.items())
        print(f"{out}: {told}; {', '.join(sorted(map(str, stream.data_vars)))}")
        if "mask" in stream:
            print(f"{written:,} of {stream['mask'].size:,} steps are written, the rest is masked")
        print(f'use it: [stream] generator = "stored", path = "{out}"')
