"""``python -m galoop`` is ``gal``."""

from galoop.cli.main import main

main()
