"""Policy: a small decoder transformer in numpy, with its backward pass and its KV cache."""

from otel_rl.demo.model.adam import Adam
from otel_rl.demo.model.cached_attention import KvCache, Sequences
from otel_rl.demo.model.decoding import DecodeBatch, Job
from otel_rl.demo.model.kv_blocks import BlockPool, NoFreeBlock
from otel_rl.demo.model.parameters import Block, Floats, Parameters, Shape
from otel_rl.demo.model.sampling import Choice, choose
from otel_rl.demo.model.transformer import Tape, backward, forward

__all__ = [
    "Adam",
    "Block",
    "BlockPool",
    "Choice",
    "DecodeBatch",
    "Floats",
    "Job",
    "KvCache",
    "NoFreeBlock",
    "Parameters",
    "Sequences",
    "Shape",
    "Tape",
    "backward",
    "choose",
    "forward",
]
