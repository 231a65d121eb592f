"""Getting embeddings, whole and verified, or a clear reason why not."""
