"""The bytes: one admitted request carried to an upstream and its answer carried back.

Bytes are relayed as they come and nothing is kept. A copy is looked at for the usage figures. What
an upstream is (`upstream`) is apart from how it is called (`aiohttp_upstream`), from which endpoint
is called and how often (`forward`), and from what crosses (`headers`, `sse`).
"""
