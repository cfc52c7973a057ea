"""The control plane itself: health, version, effective settings."""
