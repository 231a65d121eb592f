"""From chat messages to the token ids and positions that the model sees."""
