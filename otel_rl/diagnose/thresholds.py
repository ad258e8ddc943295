"""Thresholds that several rules share, each defined once and with its reason.

A threshold that one rule alone needs stands beside the rule. Ratios compare times, rates or amounts
with the same ones before, or with those of peers. An *order* is Cliff's delta: of all pairs of an
earlier and a later value, the part that is in the direction of a change, less the part that is
against it.
"""

from typing import Final

# Numbers of observations: how many prove something, and how many are noise.

A_FEW: Final = 3
"""Values or steps: fewer agree by chance, and changes that are as near to each other may be one."""

FEWEST_SINCE: Final = 4
"""Values of a level that has begun: by ranks, fewer are ordered by chance too often."""

SIDE: Final = 5
"""Values whose median stands for a level: two of them may be odd."""

SEVERAL: Final = 6
"""Values of a level of what varies by itself, such as counts, scores and trends."""

FEWEST_STEPS: Final = 8
"""Steps of a run, or times that work was done, which tell the usual and the longest time of it."""

FEWEST_BEFORE: Final = 10
"""Values that tell a level and its noise, to compare others with them."""

FEWEST_VARYING: Final = 12
"""The same of what varies by itself."""

MANY: Final = 16
"""Values, or workers, of which a part is enough to know the rest."""

FEWEST_PEERS: Final = 3
"""Workers of which one may be the odd one: of two that differ, either is."""

START: Final = 8
"""Values at the beginning of a run, in which learning rates, queues and rewards move anyway."""

SLACK: Final = 8
"""Steps by which the first step of a change is uncertain, so that two changes may be one."""

# Ratios: how much longer, or more, is how clear.

FELT: Final = 1.05
"""Longer at all: what most values show may be as little."""

BARELY: Final = 1.1
"""No longer, but for noise: above it, work takes longer."""

ALIKE: Final = 1.15
"""Two ratios, or two amounts, that are no farther from each other are the same."""

LEAST_LONGER: Final = 1.2
"""The smallest slowdown that is reported, where values are steady."""

UNLIKE: Final = 1.3
"""Peers that are as far from each other do other work, or have another fault."""

CLEARLY: Final = 1.4
"""Clearly longer, where no level before proves it, or a trend explains a little of it."""

LONGER: Final = 1.5
"""Times as long as before, from which on steps are slower."""

MUCH_LONGER: Final = 1.7
"""A slowdown that no usual noise explains."""

FAR: Final = 4.0
"""Beyond the longest time, the trend or the usual move: no healthy run came near it."""

AS_MUCH: Final = (0.6, 1.6)
"""Range of ratios at which two added times are the same."""

# Noise: in units of the deviation of values from their level.

STANDS_OUT: Final = 1.2
"""Of the medians of many values."""

NOISE_OF_COUNTS: Final = 1.5
"""Of counts and ages, whose values lie between 0 and a few."""

LONGER_NOISE: Final = 2.0
"""Of the values themselves: steps are longer from here on."""

NOISE_OF_MANY: Final = 3.0
"""Of measures of which a run has many."""

BEYOND_NOISE: Final = 5.0
"""Of few values: far out of all of it."""

# Order of a change.

IN_ORDER: Final = 0.7
"""Of a clear change."""

IN_ORDER_OF_STEPS: Final = 0.75
"""The same of whole steps, of calls and of counts, which vary more than the work of one phase."""

IN_ORDER_OF_MANY: Final = 0.85
"""The same of measures of which a run has many."""

CHANCE: Final = 0.002
"""Of an order, or of steps so near to each other, where nothing changed: over all workers."""

# Parts of a whole.

LEAST_PART: Final = 0.02
"""Of a step, or of a worker's time: what takes less of it is nobody's concern."""

SMALL_PART: Final = 0.05
"""The same of what is less certain."""

LARGE_PART: Final = 0.1
"""The same of what might be noise."""

GOOD_PART: Final = 0.25
"""Of what steps take longer, for which a cause has to account; of a level, a range or a change."""

HALF: Final = 0.5
"""Of a change that comes at once, is felt in the steps, or is of most."""

OFTEN: Final = 0.75
"""Of the steps, or of the workers: a rule with exceptions."""

MOSTLY: Final = 0.8
"""The same with few exceptions."""

NEARLY_ALL: Final = 0.95
"""The same with hardly one."""

# Times of which no rhythm of a run tells.

NEWS_S: Final = 10.0
"""Without news: an export or two may be late."""

FRESH_S: Final = 60.0
"""Age of news that tell nothing of the present any more."""
