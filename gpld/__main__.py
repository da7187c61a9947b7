"""`python -m gpld` is the `gpld` command."""

import sys

from gpld.cli import main

if __name__ == "__main__":
    sys.exit(main())
