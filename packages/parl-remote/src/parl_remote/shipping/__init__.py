"""How a class and the modules that it needs get to where its actors are."""
