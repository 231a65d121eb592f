"""Engines: ``interface`` is what they promise, each folder beside it is one."""
