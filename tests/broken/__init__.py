"""Language services that break one promise each, to see whether the load tester notices."""
