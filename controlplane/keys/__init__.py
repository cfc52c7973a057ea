"""API keys of tenants."""
