"""Usage: who used what."""
