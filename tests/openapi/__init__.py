"""Both services against their own OpenAPI documents: Schemathesis makes requests of what these say, and judges the answers."""
