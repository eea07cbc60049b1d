"""Progress, notes and the ends of commands, for everything that runs on a terminal."""
