"""What both planes must agree on to the byte, and no behaviour.

Belongs here: policy records, the database schema, Redis names, the published view, settings blocks
and log set-up that would otherwise be written twice. Does not: queries, scheduling, HTTP, caching.
A module that only one plane uses moves home. Read at the call site as `from shared import policy`
and then `policy.KeyPolicy`: the module's name gives the meaning that this package's name lacks.
"""
