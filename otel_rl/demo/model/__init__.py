"""Policy: a small decoder transformer in numpy, with its backward pass and its KV cache."""

from otel_rl.demo.model.decoding import Choice, DecodeBatch, Job, KvCache, choose
from otel_rl.demo.model.parameters import Block, Floats, Parameters, Shape
from otel_rl.demo.model.transformer import Tape, backward, forward

__all__ = [
    "Block",
    "Choice",
    "DecodeBatch",
    "Floats",
    "Job",
    "KvCache",
    "Parameters",
    "Shape",
    "Tape",
    "backward",
    "choose",
    "forward",
]
