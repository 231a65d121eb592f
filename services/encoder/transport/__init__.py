"""How embeddings leave the encoder: as frames, through shared memory, or through memory of the GPU."""
