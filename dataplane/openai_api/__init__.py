"""The public surface: what a request says, and the order in which it is dealt with.

`endpoint` is the order, in one block; everything else here answers one question each: which route,
whose key, what body, how many tokens, which session, and how an error is said.
"""
