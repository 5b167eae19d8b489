"""Meaning of the parts of a metric's name, ``VIEW/MEASURE``."""

from collections.abc import Mapping

VIEWS_IN_WORDS: Mapping[str, str] = {
    "global/common": "the global model on the common test set",
    "global/local": "the global model on each client's test part, mean over clients; with the client's "
    "own running statistics where aggregation.buffers is local",
    "global/validation": "the global model on each client's validation samples, mean over clients "
    "(evaluation.validation keeps them)",
    "personal/local": "each client's own model on its test part, mean over clients",
    "personal/others": "each client's own model on the others' test parts, mean over clients "
    "(evaluation.others=true)",
    "personal/pooled": "each client's own model on all test parts together, mean over clients "
    "(evaluation.pooled=true)",
    "personal/validation": "each client's own model on its validation samples, mean over clients "
    "(evaluation.validation keeps them)",
    "global/unseen": "the global model on the test part of each client that takes no part in training, "
    "mean over them (participation.unseen keeps them out)",
    "adapted/unseen": "the global model after evaluation.adapt_steps optimiser steps on the training "
    "samples of each client that takes no part in training, on its test part, mean over them",
    "online/local": "a method's further model, such as Fed-CO2's online one, on each client's test "
    "part",
    "offline/local": "a method's further model, such as Fed-CO2's offline one, on each client's "
    "test part",
}
"""Whose models on which data."""
MEASURES_IN_WORDS: Mapping[str, str] = {
    "accuracy": "share of samples that are classified right",
    "loss": "mean loss; less is better",
    "topK": "share of samples whose class is among the K likeliest (evaluation.top_k=5: top5)",
    "auc": "two classes: area under the ROC curve",
    "sensitivity": "two classes: share of the positive class that is found (the report names it)",
    "specificity": "two classes: share of the other class that is left alone",
    "f1": "two classes: harmonic mean of precision and sensitivity, of the positive class",
    "dice": "segmentation: overlap with the true structure; dice_NAME of one of several",
    "hausdorff": "segmentation: largest distance of the borders; less is better; hausdorff_NAME of "
    "one of several",
    "hausdorff95": "segmentation: 95th percentile of that distance; less is better; "
    "hausdorff95_NAME of one of several",
}
"""Measures; the data set decides which of them apply."""
SUFFIXES_IN_WORDS: Mapping[str, str] = {
    "/std": "standard deviation over clients",
    "/worst": "the client that is served worst",
    "/worst10": "mean of the tenth of the clients that is served worst",
    "/client/NAME": "one client's value",
}
"""Suffixes of a mean over clients."""
OTHERS_IN_WORDS: Mapping[str, str] = {
    "auto": "the method's main test value: global/common or personal/local, in the task's first "
    "measure",
    "validation": "the same models and measure on validation samples; what a sweep that chooses "
    "takes by default",
    "train/NAME": "what is tracked in training, such as train/loss, mean over clients",
}
"""Other names that a sweep can choose by."""


def is_validation(metric: str) -> bool:
    """Return whether a metric is measured on validation samples."""
    return "validation" in metric.split("/")


def is_test(metric: str) -> bool:
    """Return whether a metric is measured on test data; ``auto`` is."""
    return metric == "auto" or (
        metric.split("/")[0] in ("global", "personal", "adapted", "online", "offline")
        and not is_validation(metric)
    )
