"""Tenants: teams, their weights, caps and budgets."""
