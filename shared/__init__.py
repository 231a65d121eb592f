"""What both services must agree on, and nothing that only one of them needs."""
