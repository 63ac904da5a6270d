"""`python -m simctl` is the simctl command."""

import sys

from simctl.cli import main

if __name__ == "__main__":
    sys.exit(main())
