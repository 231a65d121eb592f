"""The OpenAI surface: schemas, routes, server-sent events. Neither torch nor zmq is imported here."""
