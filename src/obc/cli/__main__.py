"""`python -m obc.cli`: the same as `obc`."""

from obc.cli.app import main

main()
