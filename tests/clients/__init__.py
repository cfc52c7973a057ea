"""Real clients through the whole product: a table of client × feature, each cell a run."""
