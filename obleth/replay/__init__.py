"""Driving recorded traffic through a gateway, and seeing who got what.

`run` does it all for a command; `replay` does it inside a running loop; `load`, `plan`, `Player`
and `measure` are its parts, for whoever wants another arrangement of them.
"""

from obleth.replay.assignment import Plan, plan
from obleth.replay.driver import replay, run
from obleth.replay.engine import Played, Player, SessionRun
from obleth.replay.errors import BadOptions, BadTrace, GatewayUnreachable, KeyRefused, ReplayError
from obleth.replay.options import Assignment, ReplayOptions, TenantKey
from obleth.replay.report import Quantiles, Report, TenantReport, measure
from obleth.replay.sender import Call, Sender
from obleth.replay.table import render
from obleth.replay.trace import Session, Step, Trace, TraceKind, load

__all__ = [
    "Assignment",
    "BadOptions",
    "BadTrace",
    "Call",
    "GatewayUnreachable",
    "KeyRefused",
    "Plan",
    "Played",
    "Player",
    "Quantiles",
    "ReplayError",
    "ReplayOptions",
    "Report",
    "Sender",
    "Session",
    "SessionRun",
    "Step",
    "TenantKey",
    "TenantReport",
    "Trace",
    "TraceKind",
    "load",
    "measure",
    "plan",
    "render",
    "replay",
    "run",
]
