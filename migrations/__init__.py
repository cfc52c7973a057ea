"""The schema's history. `schema.py` is the way in; `versions/` holds one file a step."""
