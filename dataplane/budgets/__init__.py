"""How many tokens may be spent: per minute (a bucket, 429) and per term (a count, 403).

A request is looked at twice. `check` before any queue refuses what could not be paid for anyway and
reserves nothing. `reserve` after admission takes the estimate; `settle` replaces it with the truth
or gives it back. Between the two the estimate counts as spent, so requests that run at once cannot
overrun a budget by more than their own estimates were wrong.

`bucket` and `terms` are the arithmetic alone, in whole numbers and with the time as an argument: a
second implementation (scripts in a store that replicas share) has something exact to agree with.
"""
