"""`engine show`: what is in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.commands.options import AsJson, PluginsDir, use_plugins
from engine.errors import InputError
from engine.printing import pipe, print_json, table


def show(
    run: Annotated[Path | None, typer.Argument(help="A run's store.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every chunk: exit 1 if anything is damaged.")
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON Schema of scenario files and exit."),
    ] = False,
    as_json: AsJson = False,
    plugins_dir: PluginsDir = None,
) -> None:
    """Say what is in a run, or what is damaged.

    Scenario, solvers, how many steps are valid, sizes, and what made it.
    """
    use_plugins(plugins_dir)
    if schema:
        from engine.schema import scenario

        with pipe():
            print_json(scenario())
        return
    if run is None:
        raise InputError("give a run's store, or --schema for the keys of a scenario")
    from engine import contents
    from engine.sealed import mark

    if check:
        from engine import guard, integrity

        found = integrity.check(run)
        if as_json:
            print_json({"run": str(run), "damage": [damage.plain() for damage in found]})
        elif found:
            print(*found, sep="\n")
        else:
            print(f"{run}: nothing is damaged")
            if guard.readable(run).sealed is None:
                print("its run has not ended, so its attributes have no checksum yet")
        raise typer.Exit(int(bool(found)))
    facts = contents.describe(run)
    if as_json:
        print_json(facts)
        return
    if "parts" in facts:
        valid = f"{facts['committed']} of {facts['parts']} parts complete"
    else:
        valid = f"{facts['committed']} of {facts['steps']} steps valid, trials {facts['trials']}"
    told = facts["scenario"]
    print(": ".join(filter(None, (told["name"], told["resolved"]["title"]))))
    print(f"status {facts['status']}, {valid}")
    for label, why in facts.get("dropped", {}).items():
        print(f"{label}: dropped at step {why['dropped_at']}: {why['dropped_because']}")
    if sealed := mark(facts):
        print(sealed)
    print(f"{facts['bytes_on_disk']:,} bytes on disk")
    rows = [
        [
            name,
            " x ".join(f"{d} {n}" for d, n in v["dims"].items()) or "one number",
            v["dtype"],
            f"{v['bytes']:,}" if v["stored"] else "recomputed",
        ]
        for name, v in facts["variables"].items()
    ]
    table("", ["variable", "dims", "dtype", "bytes"], rows)
    for key, value in facts["provenance"].items():
        if key != "conventions":
            text = (
                ", ".join(f"{k} {v}" for k, v in value.items())
                if isinstance(value, dict)
                else value
            )
            print(f"{key}: {text}")
    if "parts" not in facts:
        print(f"stream sha256: {facts['stream_sha256']}")
