"""Which service answers to which name. Owns names and aliases; whoever adds a service makes and closes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stoker.service.pipeline import Service
from stoker.types.errors import ErrorKind, StokerError

SHOWN = 8  # names in an error


class Catalog:
    """The models of one server, in the order in which they were added. A name leads to one service."""

    def __init__(self) -> None:
        self._aliases: dict[Service, tuple[str, ...]] = {}
        self._names: dict[str, Service] = {}

    def add(self, service: Service, aliases: Sequence[str] = ()) -> None:
        """Raises ValueError, and adds nothing, if one of the names is taken."""
        self.replace([*self._aliases.items(), (service, aliases)])

    def replace(self, services: Iterable[tuple[Service, Sequence[str]]]) -> None:
        """These and no others from now on; requests that have found one of the others go on. Raises ValueError, and
        changes nothing, if a name leads to two."""
        aliases: dict[Service, tuple[str, ...]] = {}
        names: dict[str, Service] = {}
        for service, others in services:
            aliases[service] = tuple(others)
            for name in (service.name, *others):
                if name in names:
                    raise ValueError(f"the name {name!r} is taken")
                names[name] = service
        self._aliases, self._names = aliases, names

    def find(self, name: str) -> Service:
        """Raises StokerError (NOT_FOUND)."""
        service = self._names.get(name)
        if service is None:
            known = [f"'{service.name}'" for service in self]
            more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
            served = f"{', '.join(known[:SHOWN])}{more} {'is' if len(known) == 1 else 'are'} served"
            raise StokerError(
                ErrorKind.NOT_FOUND,
                "model_not_found",
                f"There is no model '{name[:64]}' here; {served if known else 'none is served'}.",
                param="model",
            )
        return service

    @property
    def names(self) -> dict[str, Service]:
        """Every name and alias; each model's own name before its aliases."""
        return dict(self._names)

    def __iter__(self) -> Iterator[Service]:
        return iter(tuple(self._aliases))

    def __len__(self) -> int:
        return len(self._aliases)
