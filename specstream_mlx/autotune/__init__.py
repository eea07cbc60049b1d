"""How much to draft on this machine: costs, acceptance, and the choice."""
