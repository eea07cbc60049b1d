"""What is drafted: proposals, and the trees that fixed settings or the rule make of them."""
