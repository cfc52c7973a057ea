"""What both planes must agree on to the byte, and no behaviour but the arithmetic of weights.

Belongs here: policy records, the database schema, Redis names, the published view, settings blocks
and log set-up that would otherwise be written twice. Does not: queries, scheduling, HTTP, caching.
A module that only one plane uses moves home. Read at the call site as `from shared import policy`
and then `policy.KeyPolicy`: the module's name gives the meaning that this package's name lacks.

The arithmetic (`policy.effective_weight`, `policy.split`) is here because the dashboard shows what
a change of weights would do before it is saved, also while no replica answers: that must be the
very rule by which slots are cut.
"""
