"""The vision halves, one file a family; ``generic`` serves every family that transformers can call uniformly."""
