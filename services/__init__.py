"""The services: ``encoder`` and ``language``. They import ``shared``, never each other."""
