"""The live picture: asked of a replica, or read from what replicas publish."""
