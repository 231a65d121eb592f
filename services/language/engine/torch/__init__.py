"""The embedded engine: transformers' own modules, run by torch in a thread of the language service."""
