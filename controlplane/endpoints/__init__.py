"""Endpoints: where a model is served from."""
