"""Running the pair on one machine: a supervisor's configuration, and the word that it is ready."""
