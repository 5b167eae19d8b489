import pytest
import torch
import torch.nn.functional as F

from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W


@pytest.mark.parametrize("start", ["copy", "zero"])
def test_two_steps_and_both_predictors_by_hand(start: str) -> None:
    """Client i lacks class i, so its log share is that of 1e-12; g learns from z and f of before the step."""
    clients = tiny.gaussian_clients(skew=True)
    options = {"name": "fedrod", "personal_init": start}
    federation = tiny.run(options, clients, **tiny.full("linear-body", epochs=2))
    initial, trained, heads = tiny.start(federation), [], []
    for x, y in tiny.as_tensors(clients):
        shares = (torch.bincount(y, minlength=3).double() / len(y)).clamp(min=1e-12).log()
        p = initial
        g = {"g": initial[V] if start == "copy" else torch.zeros_like(initial[V])}
        for _ in range(2):
            f = x @ p[W].T
            z = f @ p[V].T
            p = tiny.gradient_step(
                p, lambda q, x=x, y=y, s=shares: F.cross_entropy(x @ q[W].T @ q[V].T + s, y)
            )
            g = tiny.gradient_step(g, lambda q, z=z, f=f, y=y: F.cross_entropy(z + f @ q["g"].T, y))
        trained.append(p)
        heads.append(g["g"])
    mean = tiny.mean_of(trained, tiny.SIZES)
    tiny.close(federation.server.model, mean)
    for i, (x, _) in enumerate(tiny.as_tensors(clients)):
        tiny.close(tiny.state_of(federation, i)["head"], {"weight": heads[i]})
        f = x @ mean[W].T
        tiny.has_loss(federation, i, f @ mean[V].T + f @ heads[i].T)
        tiny.has_loss(federation, i, f @ mean[V].T, "global")


def test_the_personal_head_s_gradient_is_clipped_by_itself() -> None:
    one = tiny.gaussian_clients((12,))
    federation = tiny.run("fedrod", one, **tiny.full("linear-body", clip_norm=1e-3))
    moved = tiny.state_of(federation, 0)["head"]["weight"] - tiny.start(federation)[V]
    assert float(moved.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-2)  # torch adds 1e-6 to the norm
