"""The capacity model: what a fleet of encoders and language services can serve, from what one of each was measured to do."""
