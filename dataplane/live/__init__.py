"""The live picture as operators see it: views merged, shares and causes worked out, and history.

`verdicts.py`, `assembly.py` and `picks.py` are pure; `fleet.py` reads what replicas publish;
`history.py` remembers; `replica.py` is what a replica answers.
"""
