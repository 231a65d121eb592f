"""What clients send and how: pictures whose answers are known, questions about them, HTTP exchanges, and Locust's users."""
