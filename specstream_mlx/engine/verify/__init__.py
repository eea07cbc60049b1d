"""Verify rules: which path of a draft tree the target accepts. A rule is one file."""
