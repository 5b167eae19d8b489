import pytest
import torch

from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V

SKEWED = tiny.gaussian_clients(skew=True)


def rs(alpha: float, graded: bool = False) -> dict[str, object]:
    return {"name": "fedrs", "alpha": alpha, "graded": graded}


@pytest.mark.parametrize("graded", [False, True])
def test_one_step_by_hand(graded: bool) -> None:
    """Logits (a_c W_c) x, so the gradient of W_c is a_c times that of plain softmax regression at a W."""
    federation = tiny.run(rs(0.25, graded), SKEWED, **tiny.full())
    w, ends = tiny.start(federation)[V], []
    for i, (x, y) in enumerate(tiny.as_tensors(SKEWED)):
        counts = torch.bincount(y, minlength=3).double()
        assert counts[i] == 0
        binary = torch.where(counts > 0, 1.0, 0.25).double()
        a = (0.25 + 0.75 * counts / counts.max() if graded else binary)[:, None]
        ends.append({V: w - 0.1 * a * tiny.softmax_gradient(a * w, x, y)})
    tiny.close(federation.server.model, tiny.mean_of(ends, tiny.SIZES))
