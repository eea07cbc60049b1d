"""How the bundled demonstration model is made: its text, tokenizer and training."""
