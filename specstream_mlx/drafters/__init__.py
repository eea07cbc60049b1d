"""Other ways to draft than a step's own stream probabilities, on the same tree and verifier."""
