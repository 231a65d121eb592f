"""vLLM as an engine: without vision weights, in a process of its own, fed token ids and verified embeddings."""
