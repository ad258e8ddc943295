"""transformers 5.23, used only where it is not installed."""


class TrainerCallback:
    def on_train_begin(self, args, state, control, **kwargs): ...  # type: ignore[no-untyped-def]

    def on_train_end(self, args, state, control, **kwargs): ...  # type: ignore[no-untyped-def]

    def on_log(self, args, state, control, **kwargs): ...  # type: ignore[no-untyped-def]

    def on_save(self, args, state, control, **kwargs): ...  # type: ignore[no-untyped-def]
