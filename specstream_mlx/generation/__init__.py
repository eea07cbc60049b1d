"""From a prompt to a text: requests, sequences in a batch, what they write, and their KV rows."""
