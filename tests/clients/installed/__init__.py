"""Clients that are heavy to install: programs in environments of their own; see `make clients`."""
