"""The step's rules written out in plain Python."""

import math

import numpy as np


def reference_scores(logits, tree, threshold=None):
    scores = [0.0]
    for node in range(1, len(tree)):
        row = logits[tree.parents[node]]
        edge = row[tree.tokens[node]] - np.logaddexp.reduce(row)
        if threshold and edge < math.log(threshold):
            edge = -math.inf
        scores.append(scores[tree.parents[node]] + edge)
    return np.array(scores)


def walk(tree, predictions, in_play):
    """The last node that the target's own choices reach."""
    node = 0
    while True:
        children = [
            child
            for child in range(1, len(tree))
            if tree.parents[child] == node
            and tree.tokens[child] == predictions[node]
            and in_play[child]
        ]
        if not children:
            return node
        node = children[0]
