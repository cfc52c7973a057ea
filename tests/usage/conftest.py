"""Both databases, for the tests here that need one."""

from tests.databases import database, database_url

__all__ = ["database", "database_url"]
