"""What is allowed, as this process knows it: a bounded copy of the policy database.

A request finds its key's policy in memory, without a query and without a task switch. A change
reaches the copy in two ways: an invalidation names what to forget, and the revision number, read
every few seconds, shows when an invalidation was lost, upon which everything is read again. While
the database is away the copy is served for a bounded time; what it does not hold is refused as
"cannot tell" (503), never as "unknown" (401), and never let through.
"""
