"""A module whose FAMILY is none."""

FAMILY = "llava"
