"""Models: names, pool sizes, session affinity; export and import."""
