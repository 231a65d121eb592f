"""From what a model writes to a message: its reasoning, its content, its calls of tools; and grammars that it must keep to."""
