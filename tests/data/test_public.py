"""Public data from any image data set: shape, choice, labels left behind, fingerprint; and what is refused."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from flray.config.loader import load
from flray.config.schema import schema
from flray.data import load_dataset
from flray.data.loading import fit_to_shape, load_once, public_images
from flray.federation.building import build_spec
from flray.federation.spec import FederationSpec, SharedDataset
from flray.tuning.resources import data_key
from tests.helpers import built, small
from tests.messages import refused


def world_of(**changes: Any) -> FederationSpec:
    method = {"name": "fcclplus", "public_size": 20, "public_batch_size": 10}
    data = {"name": "digits-sklearn", "samples": 24}
    model = {"name": "lenet", "norm": "batch"}
    return built(small(data=data, model=model, algorithm=method), **changes)


def test_a_choice_of_training_images_of_all_domains() -> None:
    source = load_dataset("digits-sklearn")
    chosen = public_images(source, (3, 32, 32), 300, seed=0)
    pool = {
        image.tobytes(): d for d, domain in enumerate(source.domains) for image in domain.train_x
    }
    homes = [pool[image.tobytes()] for image in chosen]  # only training images are in the pool
    assert len(chosen) == 300 and min(np.bincount(homes, minlength=4)) > 40
    fewer = public_images(source, (3, 32, 32), 100, seed=0)
    assert {i.tobytes() for i in fewer} < {i.tobytes() for i in chosen}
    assert not np.array_equal(fewer, public_images(source, (3, 32, 32), 100, seed=1))


@pytest.mark.parametrize(("old", "new"), [(8, 32), (50, 32), (32, 1)])
def test_resampling_is_that_of_pillow(old: int, new: int) -> None:
    images = np.random.default_rng(old).integers(0, 256, (3, 3, old, old + 4), dtype=np.uint8)
    found = fit_to_shape(images, (3, new, new))
    for image, result in zip(images, found, strict=True):
        expected = np.asarray(
            Image.fromarray(image.transpose(1, 2, 0)).resize((new, new), Image.Resampling.BILINEAR)
        )
        assert np.abs(result.astype(int) - expected.transpose(2, 0, 1)).max() <= 1


def test_colours_become_their_luma() -> None:
    image = np.array([250, 100, 40], dtype=np.uint8).reshape(1, 3, 1, 1).repeat(6, 2).repeat(6, 3)
    found = fit_to_shape(image, (1, 6, 6))
    # 0.299 250 + 0.587 100 + 0.114 40.
    assert found.shape == (1, 1, 6, 6) and set(found.ravel().tolist()) == {138}
    refused(fit_to_shape, image, (2, 6, 6))


def test_an_experiment_names_its_public_data() -> None:
    chosen = (
        {},
        {"name": "photos", "crops": 60, "samples": 40},
        {"name": "photos", "crops": 60, "samples": 20},
    )
    own, other, fewer = (world_of(**({"public": one} if one else {})).data for one in chosen)
    assert own.public is not None and other.public is not None and fewer.public is not None
    assert own.public.shape == (1000, 3, 32, 32) and other.public.shape == (40, 3, 32, 32)
    assert {i.tobytes() for i in fewer.public} < {i.tobytes() for i in other.public}
    assert len({data.fingerprint for data in (own, other, fewer)}) == 3
    assert np.array_equal(own.x, other.x)


def test_the_section_survives_saving_and_is_known_to_sweeps() -> None:
    public = {"name": "digits-sklearn", "samples": 9, "domains": ["plain"]}
    known = {"data": "digits-sklearn", "model": "lenet", "algorithm": "fedavg"}
    content = {"experiment": {**known, "public": public}}
    experiment = load(content).experiment
    assert load({"experiment": experiment.model_dump(mode="json")}).experiment == experiment
    assert load(content, ["public=photos"]).experiment.public.options["samples"] == 5000
    keys = {data_key(load(content, [f"public.samples={n}"]).experiment) for n in (9, 10)}
    assert len(keys) == 2
    once = load_once("digits-sklearn", experiment.data.options, experiment.public)
    for shared in (SharedDataset.of(once), None):
        assert len(build_spec(experiment, shared).data.public) == 9
    forms = schema()["$defs"]["PublicChoice"]["anyOf"]
    assert all("samples" in form["properties"] for form in forms if "properties" in form)


RANDOM = {"name": "random", "samples": 40}
ALONE = {"data": RANDOM, "partition": {"name": "iid", "clients": 2}}


@pytest.mark.parametrize(
    "changes",
    [
        {"public": "photo"},
        {"public": {"name": "photos", "samples": 1}},
        {"public": {"name": "photos", "sample": 100}},
        {"public": {"name": "photos", "crops": 50, "samples": 90}},
        {"public": {"name": "random", "samples": 10}},
        {**ALONE, "public": {"name": "photos", "crops": 50}},
        ALONE,
    ],
)
def test_what_cannot_serve_is_refused(changes: dict[str, Any]) -> None:
    refused(world_of, **changes)
