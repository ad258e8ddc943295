"""transformers 5.10's ``Trainer``, as far as callbacks go."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any


class Trainer:
    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        self.callback_handler = SimpleNamespace(callbacks=list(callbacks))

    def add_callback(self, callback: Any) -> None:
        self.callback_handler.callbacks.append(callback)

    def train(self) -> None:
        args = SimpleNamespace(run_name="r", to_dict=lambda: {"lr": 0.1})
        state = SimpleNamespace(global_step=7, is_world_process_zero=True)
        for callback in self.callback_handler.callbacks:
            callback.on_train_begin(args, state, None)
            callback.on_log(args, state, None, logs={"loss": 0.5})
            callback.on_train_end(args, state, None)
