"""The entry point of ``shoal`` and ``python -m shoal``."""

from shoal.cli.interrupt import end_at_once_on_interrupt


def script() -> None:
    """Run the command line."""
    end_at_once_on_interrupt()
    # Typer and rich take a third of a second, in which Ctrl-C would end in a traceback.
    from shoal.cli import app  # noqa: PLC0415

    app.script()


if __name__ == "__main__":
    script()
