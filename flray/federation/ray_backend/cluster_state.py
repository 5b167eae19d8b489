"""What Ray knows of nodes and actors; its private state is read here alone."""

from __future__ import annotations

import ray
from ray._private.state import state as ray_state


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that Ray drains."""
    return frozenset(ray_state.get_draining_nodes())


def lost_nodes() -> set[str]:
    """Return the ids of the nodes that Ray has given up."""
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


def node_of(actor: str) -> tuple[str, bool]:
    """Return the id of an actor's node, empty where it has none, and whether Ray knows that the actor is dead."""
    found = ray_state.actor_table(actor)
    return found.get("Address", {}).get("NodeID", ""), found.get("State") == "DEAD"
