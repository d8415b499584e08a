"""The command line, `mrp-hf`."""

from mrp_hf.cli.app import main

__all__ = ["main"]
