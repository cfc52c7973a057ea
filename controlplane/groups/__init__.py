"""Groups: who shares with whom."""
