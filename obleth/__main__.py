"""`python -m obleth`: the same as the `obleth` command."""

from obleth.cli import main

main()
