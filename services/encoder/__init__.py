"""The encoder service: it owns the vision half of a model, and no language weights."""
