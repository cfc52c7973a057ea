"""A simulated LLM backend: OpenAI's and Anthropic's surface, slots, a prefix cache, and faults.

It serves real HTTP, in a process of its own (`run`) or inside a test (`SimulatedBackend`), and it
is the only one that knows what really ran: its log and figures are what the gateway's own are held
against. `obleth.backend.switches` has the table of all that can be made to go wrong.
"""

from obleth.backend.ledger import Outcome, RequestRecord
from obleth.backend.options import BackendOptions
from obleth.backend.process import run
from obleth.backend.server import CannotListen, SimulatedBackend
from obleth.backend.switches import BadSwitch, Faults

__all__ = [
    "BackendOptions",
    "BadSwitch",
    "CannotListen",
    "Faults",
    "Outcome",
    "RequestRecord",
    "SimulatedBackend",
    "run",
]
