"""Runs typical commands with eager compilation, which fills NUMBA_CACHE_DIR.

Without numba nothing is run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from dphmm.__main__ import main
from dphmm.compilation import compile_at_first_call

BBOX = "--bbox 44.97 -30.04 45.03 -29.96"
COMMANDS = (
    f"learn {{data}}/geolife --exclude-users 000 {BBOX} --cell 0.5 --step 300 -o model.npz",
    "release {data}/geolife --users 000 --model model.npz --policy utility:1km --epsilon 1 -o releases.csv",
    "audit session releases.csv --model model.npz --policy utility:1km --epsilon 1",
    "leak --model model.npz --steps 10 --epsilon 1",
    "serve relay.toml --init --model model.npz --user ann",
    "hide {data}/ride.gpx --near 45.01,-30.01 --within 500m -o public.gpx",
)


def run(data: Path) -> int:
    """Run the commands and return the number of compiled loops in the folder."""
    with compile_at_first_call():
        for line in COMMANDS:
            sys.argv = ["dphmm", *line.format(data=data).split()]
            try:
                main()
            except SystemExit as end:
                if end.code:
                    raise
    return sum(1 for _ in Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi"))


if __name__ == "__main__" and find_spec("numba"):
    data = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(run(data), "loops are compiled")
