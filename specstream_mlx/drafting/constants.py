"""The planner's constants, and the studies that chose them.

``benchmarks/drafting_rule.py`` decodes recorded texts with one of them changed at a time;
``benchmarks/NOTES.md`` has its verdicts under "Which constants of the rule matter?", and other
studies by the headings that are named here.
"""

import math

# The rule -----------------------------------------------------------------------------------------

MOST_NODES = 16
"""Nodes of a step, the root included; 8 bring less (the study)."""

MOST_ROWS = 4 * MOST_NODES
"""Nodes up to which costs are told apart: those that drafters ask for come on top."""

WIDTH = 4
"""Candidates of each stream: more save hardly any calls ("How wide and how deep should a full tree
be?")."""

LEAST = math.log(0.02)
"""Log-probability of the least probable path considered: flat in the study."""

RATE_MEMORY = 128.0
"""Number of tokens that r averages: from 32 to 512 within 2% (the study)."""

SHARED_RATE = 1.5
"""Start of r in shared mode, in tokens per plain step's time (the study)."""

VALUE = 0.5
"""Start of v with an adapter that has not decoded yet, in tokens (the study)."""

PACE_VALUE_WEIGHT = 8
"""Steps that ``VALUE`` counts as (the study)."""

PACE_VALUE_MEMORY = 64
"""Steps in the average that a text's v starts from (the study)."""

VALUE_WEIGHT = 1
"""Steps that the start of a text's v counts as: with more, streams that know a text by heart may be
left out of it (the study)."""

VALUE_MEMORY = 8
"""Steps of a text that its v averages (the study)."""

TRIALS = 0.0025
"""Tokens, of each that is written without streams, that may be lost to steps in which they are
tried: with none, streams that begin a text badly are left out to its end (the study)."""

BATCH_MEMORY = 64
"""Passes of several texts after which the times of another number of rows are forgotten (not
studied)."""

BATCH_TIMES = 5
"""Times of passes of several texts that are kept for each number of rows (not studied)."""

GAIN_MEMORY = 4
"""Rounds of a drafter of proposals that its average gain is of (not studied)."""

LONGEST_REST = 64
"""Steps that a drafter of proposals rests at most, see ``calibration.Backoff``."""

PLAIN_RUN = 2
"""Plain steps in a row, of which the last is timed: the calls before and after it are pipelined."""

# The streams' probabilities, corrected by their hits in the text ----------------------------------

START = 0.8
"""Hits over expected hits at the beginning of a text: unfamiliar text wants less, text like the
training's more (the study)."""

WEIGHT = 8.0
"""Expected hits that ``START`` counts as: flat in the study."""

MEMORY = 16.0
"""Expected hits that are remembered: flat in the study."""

MOST = 0.99
"""Probability of a guess at most."""

MOST_TOGETHER = 0.995
"""Probability of all guesses of a depth at most."""

# Lookup -------------------------------------------------------------------------------------------

PRIORS = (0.0, 0.3, 0.5, 0.65, 0.75)
"""Acceptance of the newest continuation at the beginning of a text, by length of the n-gram, 0 to 4
(the study)."""

SECOND_PRIOR = 0.05
"""Acceptance of the continuation before the newest, for n-grams of any length."""

PRIOR_WEIGHT = 4
"""Guesses that a prior counts as (the study)."""

LOOKUP_MEMORY = 64
"""Guesses that are remembered: flat in the study."""

# Where streams and lookup guess the same token ("How should the two drafters' probabilities be
# joined?") ----------------------------------------------------------------------------------------

UNLISTED = 0.03
"""Probability of a token that only lookup proposes, as a share of the probability that the streams'
candidates leave over."""

COINCIDENCE = 0.05
"""Share of lookup's wrong tokens that the streams propose too."""
