"""The console: a page by which people try the service and see what it does, made of static files alone."""
