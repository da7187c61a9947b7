"""The process that draws films: see `film`."""

import json
import sys
from pathlib import Path

from gpld.films._episodes import shoot

if __name__ == "__main__":
    made = shoot(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
    print(json.dumps(made, default=str))
