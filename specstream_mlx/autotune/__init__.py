"""How much to draft: the value of every choice in tokens, worked out anew before every step."""
