"""``python -m shoal`` is the command line."""

from shoal.cli.app import script

if __name__ == "__main__":
    script()
