"""The slots that replicas share: claimed before a request runs, given back when it has."""
