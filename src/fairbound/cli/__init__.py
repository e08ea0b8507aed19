"""The command line, `fairbound`: typer and rich are loaded here and nowhere else."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point: errors at the border are one sentence, not a traceback."""
    try:
        from fairbound.cli._app import app
    except ImportError as error:
        sys.exit(f"The command line needs {error.name}: pip install 'fairbound[cli]'")
    except KeyboardInterrupt:
        sys.exit(130)
    app()
