"""`python -m stoker.cli`: the command line without an installed script."""

from stoker.cli import main

main()
