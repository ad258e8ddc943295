"""Dict with access by attribute, for W&B's config and summary."""

from collections.abc import MutableMapping

__all__ = ["AttributeMapping"]


class AttributeMapping(MutableMapping[str, object]):
    """Makes ``x.name`` equal ``x["name"]`` for every name without a leading underscore."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # also for an object without state, during a copy
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
