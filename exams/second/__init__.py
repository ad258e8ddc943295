"""Second exam of the diagnosis: event simulations of three kinds of RL systems, written apart from
the first exam and from the rules.

A *scenario* fixes what goes wrong and what is right to say of it. A *program*, drawn from a seed,
fixes sizes, times, noise, names and the SDK. The simulated workers record what such a program
records, the recordings are encoded as its SDK does and given to the bridge's intake.
"""
