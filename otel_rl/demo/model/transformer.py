"""Forward pass over whole sequences, with a hand-written gradient.

Pre-norm blocks, causal attention, learned positions, RMS norms without bias. Sequences are padded
on the right: causal attention never looks ahead, so padding cannot affect the positions before it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otel_rl.demo.model.parameters import Block, Floats, Parameters

__all__ = ["Tape", "backward", "forward", "rms_norm", "softmax"]

NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class _BlockTape:
    """Intermediate values of one block for its gradient."""

    entered: Floats
    attention_scale: Floats
    attention_input: Floats
    queries: Floats
    keys: Floats
    values: Floats
    attention: Floats
    mixed: Floats
    between: Floats
    mlp_scale: Floats
    mlp_input: Floats
    hidden: Floats


@dataclass(frozen=True, slots=True)
class Tape:
    """Intermediate values of :func:`forward` for :func:`backward`."""

    tokens: npt.NDArray[np.int64]
    blocks: tuple[_BlockTape, ...]
    left: Floats
    final_scale: Floats
    final_input: Floats


def forward(parameters: Parameters, tokens: npt.NDArray[np.int64]) -> tuple[Floats, Tape]:
    """Compute the logits of the next token at every position.

    Args:
        parameters: The policy.
        tokens: (rows, length) token ids, padded on the right.

    Returns:
        Logits (rows, length, vocabulary), and the tape for :func:`backward`.
    """
    stream: Floats = parameters.tokens[tokens] + parameters.positions[: tokens.shape[1]]
    tapes = []
    for block in parameters.blocks:
        stream, tape = _block_forward(block, stream, parameters.shape.heads)
        tapes.append(tape)
    final_input, final_scale = rms_norm(stream, parameters.final_gain)
    logits = final_input @ parameters.head
    return logits, Tape(tokens, tuple(tapes), stream, final_scale, final_input)


def backward(parameters: Parameters, tape: Tape, logits_gradient: Floats) -> Parameters:
    """Compute the gradient of a loss with respect to every parameter.

    Args:
        parameters: The policy that made ``tape``.
        tape: Of the forward pass.
        logits_gradient: Gradient of the loss with respect to the logits, same shape.
    """
    gradient = parameters.zeros()
    gradient.head[:] = _outer(tape.final_input, logits_gradient)
    stream = _norm_backward(
        logits_gradient @ parameters.head.T,
        tape.left,
        tape.final_scale,
        parameters.final_gain,
        gradient.final_gain,
    )
    for block, block_gradient, block_tape in zip(
        reversed(parameters.blocks), reversed(gradient.blocks), reversed(tape.blocks), strict=True
    ):
        stream = _block_backward(block, block_gradient, block_tape, stream)
    gradient.positions[: stream.shape[1]] = stream.sum(axis=0)
    np.add.at(gradient.tokens, tape.tokens, stream)
    return gradient


def softmax(scores: Floats) -> Floats:
    """Compute probabilities along the last axis, without overflow."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalised: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return normalised


def rms_norm(stream: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """Scale the stream to unit root-mean-square times ``gain``; also returns the scale factor."""
    scale: Floats = 1.0 / np.sqrt((stream * stream).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return stream * scale * gain, scale


def _block_forward(block: Block, entered: Floats, heads: int) -> tuple[Floats, _BlockTape]:
    rows, length, width = entered.shape
    attention_input, attention_scale = rms_norm(entered, block.attention_gain)
    projected = (attention_input @ block.query_key_value).reshape(
        rows, length, 3, heads, width // heads
    )
    queries, keys, values = (projected[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
    scores = queries @ keys.swapaxes(-1, -2) * (width // heads) ** -0.5
    scores = np.where(np.tri(length, dtype=bool), scores, scores.dtype.type(-1e9))
    attention = softmax(scores)
    mixed = (attention @ values).transpose(0, 2, 1, 3).reshape(rows, length, width)
    between = entered + mixed @ block.attention_out
    mlp_input, mlp_scale = rms_norm(between, block.mlp_gain)
    hidden = np.maximum(mlp_input @ block.mlp_in, 0)
    tape = _BlockTape(
        entered,
        attention_scale,
        attention_input,
        queries,
        keys,
        values,
        attention,
        mixed,
        between,
        mlp_scale,
        mlp_input,
        hidden,
    )
    return between + hidden @ block.mlp_out, tape


def _block_backward(block: Block, gradient: Block, tape: _BlockTape, leaving: Floats) -> Floats:
    rows, length, width = leaving.shape
    heads = tape.queries.shape[1]
    gradient.mlp_out[:] = _outer(tape.hidden, leaving)
    hidden = (leaving @ block.mlp_out.T) * (tape.hidden > 0)
    gradient.mlp_in[:] = _outer(tape.mlp_input, hidden)
    between = leaving + _norm_backward(
        hidden @ block.mlp_in.T, tape.between, tape.mlp_scale, block.mlp_gain, gradient.mlp_gain
    )

    gradient.attention_out[:] = _outer(tape.mixed, between)
    mixed = (between @ block.attention_out.T).reshape(rows, length, heads, width // heads)
    mixed = mixed.transpose(0, 2, 1, 3)
    values = tape.attention.swapaxes(-1, -2) @ mixed
    attention = mixed @ tape.values.swapaxes(-1, -2)
    scores = tape.attention * (attention - (attention * tape.attention).sum(axis=-1, keepdims=True))
    scores *= (width // heads) ** -0.5
    queries = scores @ tape.keys
    keys = scores.swapaxes(-1, -2) @ tape.queries
    projected = np.stack([queries, keys, values], axis=2).transpose(0, 3, 2, 1, 4)
    projected = projected.reshape(rows, length, 3 * width)
    gradient.query_key_value[:] = _outer(tape.attention_input, projected)
    return between + _norm_backward(
        projected @ block.query_key_value.T,
        tape.entered,
        tape.attention_scale,
        block.attention_gain,
        gradient.attention_gain,
    )


def _norm_backward(
    outcome: Floats, stream: Floats, scale: Floats, gain: Floats, gain_gradient: Floats
) -> Floats:
    """Compute the gradient through :func:`rms_norm`; fills ``gain_gradient``."""
    normalised = stream * scale
    gain_gradient[:] = (outcome * normalised).sum(axis=(0, 1))
    scaled = outcome * gain
    along = (scaled * normalised).mean(axis=-1, keepdims=True)
    entering: Floats = scale * (scaled - normalised * along)
    return entering


def _outer(inputs: Floats, outputs: Floats) -> Floats:
    """Compute the gradient of a matrix from ``inputs`` to ``outputs``, summed over positions."""
    return inputs.reshape(-1, inputs.shape[-1]).T @ outputs.reshape(-1, outputs.shape[-1])
