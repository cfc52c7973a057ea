"""The dashboard: pages for operators, a client of the Management API in the same process."""
