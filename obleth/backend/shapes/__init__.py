"""The dialects the backend speaks: what each asks for, and how each answers."""
