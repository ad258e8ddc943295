"""A dict whose items are attributes, too: W&B's config and summary are used both ways."""

from collections.abc import MutableMapping

__all__ = ["AttributeMapping"]


class AttributeMapping(MutableMapping[str, object]):
    """``x.name`` is ``x["name"]`` for every name that does not begin with an underscore."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # also while an object is copied and has nothing yet
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as exc:
            raise AttributeError(f"there is no {name!r}") from exc

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self[name] = value

    def __repr__(self) -> str:
        return repr(dict(self))
