"""Types of Ray's handles for calls of actors, because Ray has no types."""

from typing import NamedTuple, Protocol

ObjectRef = object
"""A reference to an object in Ray's store."""


class ReplyInCall(NamedTuple):
    """A reference to one reply among those of a call."""

    call: ObjectRef
    place: int
    number: int


class Place(NamedTuple):
    """The place of an object among the arguments of a call; `reply` finds one in a list of them."""

    argument: int
    reply: int | None


PlacementGroup = object
"""A reserved set of bundles."""


class RemoteMethod(Protocol):
    """A method of an actor."""

    def remote(self, *args: object, **named: object) -> ObjectRef:
        """Call it; return a reference to its result."""

    def options(self, *, num_returns: int) -> "RemoteMethod":
        """Return the method with `num_returns` results, each a separate object."""


class MultipleResults(Protocol):
    """A method of an actor that returns several objects."""

    def remote(self, *args: object) -> list[ObjectRef]:
        """Call it; return a reference to each result."""

    def options(self, *, num_returns: int) -> "MultipleResults":
        """Return the method with `num_returns` results, each a separate object."""


class ClientHandle(Protocol):
    """A `flray.federation.ray_backend.client_actor.ClientActor` in its process."""

    run: MultipleResults
    describe: RemoteMethod
    networks: RemoteMethod
    reset: RemoteMethod


class ServerHandle(Protocol):
    """A `flray.federation.ray_backend.handle.ServerActor` in its process."""

    call: RemoteMethod
    close: RemoteMethod
