"""Class means and FedSKC's structural knowledge, local and global.

Equation numbers are those of "FedSKC: Federated Learning with Non-IID Data via Structural Knowledge
Collaboration". K clients, C classes, D entries of a knowledge vector (FedSKC: the logits, so D =
C).
"""

import torch
from torch import Tensor

from flray.devices import transfers
from flray.functional.checks import check_labels, check_mask, check_shapes


def class_means(outputs: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean output of every class (FedSKC section III-A, before the gate).

    Parameters
    ----------
    outputs : Tensor [n, D]
        One row per sample; sums are accumulated in float64.
    labels : Tensor [n] of integers
        Classes in ``[0, num_classes)``.
    num_classes : int
        C.

    Returns
    -------
    means : Tensor [C, D], dtype of `outputs`
        A class without samples has a row of zeros.
    counts : Tensor [C] of int64
        Samples per class; 0 marks an absent class.

    Raises
    ------
    ValueError
        If shapes differ from the above or a label is out of range.
    """
    check_shapes(outputs=(outputs, "n D"), labels=(labels, "n"))
    labels = check_labels(labels)
    if num_classes < 1:
        raise ValueError(f"num_classes: {num_classes}, expected at least 1")
    on_host = labels.cpu()
    if on_host.numel() and (int(on_host.min()) < 0 or int(on_host.max()) >= num_classes):
        raise ValueError(
            f"labels: values {int(on_host.min())} to {int(on_host.max())}, expected 0 to "
            f"{num_classes - 1}"
        )
    numbers = torch.bincount(on_host, minlength=num_classes)
    counts = transfers.to_device(numbers, labels.device)
    # Sorted and summed class by class: unlike a scattered addition this has one order on a GPU, and
    # unlike a product with one-hot rows it keeps a sample that is not finite within its own class.
    groups = torch.split(outputs[labels.argsort(stable=True)], numbers.tolist())
    sums = torch.stack([group.double().sum(0) for group in groups])
    return (sums / counts.clamp(min=1).unsqueeze(1)).to(outputs.dtype), counts


def structural_knowledge(
    outputs: Tensor, labels: Tensor, num_classes: int, gate: bool = True
) -> tuple[Tensor, Tensor]:
    """Return a client's class knowledge ``c * sigmoid(c)``, c being the class means (FedSKC section III-A).

    Parameters
    ----------
    outputs : Tensor [n, D]
        The client's logits.
    labels : Tensor [n] of integers
    num_classes : int
        C.
    gate : bool
        False leaves the plain class means, as the authors' released code does.

    Returns
    -------
    knowledge : Tensor [C, D]
        Rows of absent classes are zero.
    counts : Tensor [C] of int64

    Raises
    ------
    ValueError
        As `class_means`.
    """
    means, counts = class_means(outputs, labels, num_classes)
    return (means * torch.sigmoid(means) if gate else means), counts


def global_structural_knowledge(
    knowledge: Tensor, present: Tensor, neighbours: int = 1
) -> tuple[Tensor, Tensor]:
    """Merge the clients' knowledge, each vector first averaged with its nearest ones (FedSKC Eq. 1).

    Per class, over the clients that hold it: every vector is averaged with its `neighbours` nearest
    others by Euclidean distance (or all, if there are fewer), then the plain mean over holders is
    taken. Of equally near clients the first is chosen. A single holder's vector is the result.

    Parameters
    ----------
    knowledge : Tensor [K, C, D]
        Rows that are not present may hold anything.
    present : Tensor [K, C] of bool
        Which client holds which class.
    neighbours : int
        The paper's M.

    Returns
    -------
    global_ : Tensor [C, D]
        Zero if no client holds the class.
    present : Tensor [C] of bool

    Raises
    ------
    ValueError
        If shapes differ from the above, the mask is not boolean or `neighbours` is negative.
    """
    sizes = check_shapes(knowledge=(knowledge, "K C D"), present=(present, "K C"))
    check_mask("present", present)
    if neighbours < 0:
        raise ValueError(f"neighbours: {neighbours}, expected 0 or more")
    merged = []
    for held, vectors in zip(present.T, knowledge.transpose(0, 1), strict=True):
        holders = vectors[held]
        if not len(holders):
            merged.append(knowledge.new_zeros(sizes["D"]))
            continue
        values = holders.detach().double()
        distances = torch.linalg.vector_norm(values.unsqueeze(1) - values.unsqueeze(0), dim=2)
        distances.fill_diagonal_(-1.0)  # every vector comes first in its own group
        nearest = distances.argsort(dim=1, stable=True)[:, : neighbours + 1]
        merged.append(holders.double()[nearest].mean(1).mean(0).to(knowledge.dtype))
    return torch.stack(merged) if merged else knowledge.new_zeros(0, sizes["D"]), present.any(0)
