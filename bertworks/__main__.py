"""`python -m bertworks` is the command `bertworks`."""

from bertworks.cli import main

main()
