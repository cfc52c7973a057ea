"""The control plane, over HTTP, on both databases."""
