"""The language service: the public API and the language half of a model. It never computes vision."""
