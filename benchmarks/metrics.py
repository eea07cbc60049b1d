"""Quality of a task's output against its reference: exact match and ROUGE-L."""

from collections.abc import Sequence


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Share of outputs equal to their reference, surrounding white space apart."""
    pairs = zip(outputs, references, strict=True)
    return sum(output.strip() == reference.strip() for output, reference in pairs) / len(outputs)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence of two word lists."""
    row = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if word == other else max(above, row[column - 1])
            diagonal = above
    return row[-1]


def rouge_l(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Mean ROUGE-L F1 over lower-cased, white-space separated words (Lin 2004)."""
    total = 0.0
    for output, reference in zip(outputs, references, strict=True):
        words, wanted = output.lower().split(), reference.lower().split()
        common = longest_common_subsequence(words, wanted)
        total += 2 * common / (len(words) + len(wanted)) if common else 0.0
    return total / len(outputs)


METRICS = {
    "proofread": ("exact match", exact_match),
    "sql": ("exact match", exact_match),
}
"""Metric by task; the other tasks use ROUGE-L."""


def score(task: str, outputs: Sequence[str], references: Sequence[str]) -> tuple[str, float]:
    """Name and value of ``task``'s metric."""
    name, metric = METRICS.get(task, ("ROUGE-L", rouge_l))
    return name, metric(outputs, references)
