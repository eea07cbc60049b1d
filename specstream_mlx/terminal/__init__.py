"""Progress, notes, and the ends of commands."""
