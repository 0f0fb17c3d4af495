"""Write the stores that later releases must read: `python tests/stores/make.py`, once a format.

Each zip holds a run that recorded every step and one with keyframes.
"""

import platform
import tempfile
import zipfile
from pathlib import Path

SCENARIO = {
    "title": "what a release leaves behind",
    "seed": 11,
    "trials": 2,
    "stream": {"generator": "random", "steps": 20, "key": 3, "value": 2, "priority": 0.5},
    "solvers": {
        "delta": {"beta": {"gate": "priority", "low": 0.1, "high": 0.9}},
        "softmax": {"solver": "softmax_attention"},
    },
    "probes": {"recall": {"every": 8}},
}
RECORDS = {"every": "every", "keyframes": {"keyframes": 8}}


def main():
    """Write FORMAT.zip beside this file, unless it is there."""
    import engine
    from engine.store import FORMAT

    path = Path(__file__).with_name(f"format{FORMAT}.zip")
    if path.exists():
        raise SystemExit(f"{path} exists; it is to stay as that release wrote it")
    platform.node, platform.platform = lambda: "somewhere", lambda: "some system"
    with tempfile.TemporaryDirectory() as folder:
        for name, record in RECORDS.items():
            engine.run(SCENARIO, Path(folder) / f"{name}.zarr", record=record)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as kept:
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():  # a folder has nothing to say
                    kept.write(file, file.relative_to(folder))


if __name__ == "__main__":
    main()
