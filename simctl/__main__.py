"""`python -m simctl` is the simctl command."""

from simctl.cli import main

if __name__ == "__main__":
    main()
