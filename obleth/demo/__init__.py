"""`obleth demo`: the whole product on one machine, with something to look at.

A simulated backend, the embedded product in front of it, two tenants in groups weighted 500 and 50
on a model of eight slots, and clients that keep both tenants' queues filled. What is set up is set
up over the Management API, as an operator would.
"""

from obleth.demo.demonstration import run_demo

__all__ = ["run_demo"]
