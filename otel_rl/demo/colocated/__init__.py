"""Demo variant with training and generation on one device, in turns. On-policy GRPO.

Two processes, a generator and a trainer. The process without the turn holds nothing "on the
device": it has offloaded to shared memory, and reloads from there at its next turn. A turn's
metrics are recorded before the hand-over, so that they do not depend on the other process.
"""
