"""The `obleth` command, the embedded composition, the demo and the simulated backend."""

__version__ = "0.1.0"
