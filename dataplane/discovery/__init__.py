"""What is really there behind a model: which endpoints answer, how many backends are ready.

Decided in two pure modules: `health.py` says what a sign of life, or of its absence, means for an
endpoint, and `sizing.py` what answers mean for the size of a pool. The others ask: `prober.py` the
endpoints, `dns.py` and `kubernetes.py` where backends register. Requests read what is known and
never wait for any of it.
"""
