"""The demo with training and generation on the same device, taking turns. On-policy GRPO.

Two processes, a generator and a trainer. Whoever does not have the turn holds nothing "on the
device": it has offloaded to shared memory, and reloads from there when its turn comes. What a turn
was like is recorded before it is handed over, so that nothing waits for the other process.
"""
