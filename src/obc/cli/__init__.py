"""The command line: `obc --help` lists the commands."""

from obc.cli.app import app, main

__all__ = ["app", "main"]
