"""The process that draws films: see `film` and `film_dream`."""

import json
import sys
from pathlib import Path

from gpld.films._films import record_dream, record_films

if __name__ == "__main__":
    what, run, out, *numbers = sys.argv[1:]
    made = {"film": record_films, "dream": record_dream}[what](Path(run), Path(out), *map(int, numbers))
    print(json.dumps(made, default=str))
