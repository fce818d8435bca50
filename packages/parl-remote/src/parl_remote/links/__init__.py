"""What every link has in common, whoever is at its ends: the loop, the greeting, questions and answers."""
