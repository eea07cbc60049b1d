"""An average that follows what changes: each new value counts as one of the last so many."""


def averaged(average: float, count: int, value: float, memory: int) -> tuple[float, int]:
    """Take a value into an average.

    Args:
        average: of the values before.
        count: the number that these count as.
        value: the new one.
        memory: the most that they count as, the new one included.

    Returns:
        the average, and the number of values that it counts as.
    """
    count = min(count + 1, memory)
    return average + (value - average) / count, count
