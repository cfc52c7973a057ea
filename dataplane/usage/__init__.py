"""Who used what: one row for each request, written in batches off the request's path.

A row that cannot be written waits, in bounded memory, for the database to come back; what does not
fit is dropped and counted. Each row has an id from the moment it is recorded, so that a batch whose
commit was never confirmed is simply written again: nothing is stored twice.
"""
