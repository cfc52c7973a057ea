"""`obleth top` and `obleth explain`: the live picture in a terminal."""

from obleth.console.commands import explain, top

__all__ = ["explain", "top"]
