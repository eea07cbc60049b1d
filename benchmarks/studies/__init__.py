"""Studies that were made once to decide something; ``benchmarks/NOTES.md`` has their verdicts."""
