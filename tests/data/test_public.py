"""Public data from any image data set: shape, choice, labels left behind, fingerprint; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from flray.config.loader import load, schema
from flray.data import load_dataset
from flray.data.loading import fit_to_shape, load_once, public_images
from flray.errors import ConfigError, FlrayError
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from flray.federation.spec import FederationSpec, SharedDataset
from flray.tuning.resources import data_key


def world_of(**changes: Any) -> FederationSpec:
    content = {
        "data": {"name": "digits-sklearn", "samples": 24},
        "model": {"name": "lenet", "norm": "batch"},
        "algorithm": {"name": "fcclplus", "public_size": 20, "public_batch_size": 10},
        "rounds": 1,
        "tracking": {"uri": None},
        "resources": {"executor": "inline"},
        **changes,
    }
    return build_spec(load({"experiment": content}).experiment)


def test_photos_are_a_data_set_of_crops() -> None:
    dataset = load_dataset("photos", {"crops": 50, "size": 24})
    (domain,) = dataset.domains
    assert domain.train_x.shape == (50, 3, 24, 24) and domain.test_x.shape == (10, 3, 24, 24)
    assert domain.train_x.dtype == np.uint8 and domain.train_x.std(axis=(1, 2, 3)).min() > 5
    assert len({image.tobytes() for image in domain.train_x}) == 50
    again, other = (
        load_dataset("photos", {"crops": 50, "size": 24, "seed": seed}).fingerprint
        for seed in (0, 1)
    )
    assert again == dataset.fingerprint != other


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


@pytest.mark.parametrize(("old", "new"), [(8, 32), (28, 32), (64, 32), (32, 28), (50, 32), (32, 1)])
def test_resampling_is_that_of_pillow(old: int, new: int) -> None:
    images = np.random.default_rng(old).integers(0, 256, (3, 3, old, old + 4), dtype=np.uint8)
    found = fit_to_shape(images, (3, new, new))
    for image, result in zip(images, found, strict=True):
        expected = np.asarray(
            Image.fromarray(image.transpose(1, 2, 0)).resize((new, new), Image.Resampling.BILINEAR)
        )
        assert np.abs(result.astype(int) - expected.transpose(2, 0, 1)).max() <= 1


def test_constant_images_stay_what_they_are() -> None:
    images = np.stack([np.full((1, 13, 13), value, dtype=np.uint8) for value in (0, 7, 255)])
    found = fit_to_shape(images, (3, 32, 20))
    assert found.shape == (3, 3, 32, 20)
    assert [set(image.ravel().tolist()) for image in found] == [{0}, {7}, {255}]


def test_colours_become_their_luma() -> None:
    image = np.array([250, 100, 40], dtype=np.uint8).reshape(1, 3, 1, 1).repeat(6, 2).repeat(6, 3)
    found = fit_to_shape(image, (1, 6, 6))
    # 0.299 250 + 0.587 100 + 0.114 40.
    assert found.shape == (1, 1, 6, 6) and set(found.ravel().tolist()) == {138}


def test_an_experiment_names_its_public_data() -> None:
    own, other, fewer = (
        world_of(**public).data
        for public in (
            {},
            {"public": {"name": "photos", "samples": 60}},
            {"public": {"name": "photos", "samples": 30}},
        )
    )
    assert own.public is not None and other.public is not None and fewer.public is not None
    assert own.public.shape == (1000, 3, 32, 32) and other.public.shape == (60, 3, 32, 32)
    assert {i.tobytes() for i in fewer.public} < {i.tobytes() for i in other.public}
    assert len({own.fingerprint, other.fingerprint, fewer.fingerprint}) == 3
    assert np.array_equal(own.x, other.x)


def test_it_is_trained_on() -> None:
    digests = []
    for public in (
        None,
        {"name": "photos", "samples": 20},
        {"name": "digits-sklearn", "samples": 20},
    ):
        spec = world_of(public=public)
        federation = Federation(spec, InlineExecutor(spec))
        federation.step()
        digests.append(federation.sha256())
    assert len(set(digests)) == 3


def test_grey_private_images_get_grey_public_ones() -> None:
    private = load_dataset("digits-sklearn", {"samples": 5})
    assert public_images(private, (1, 28, 28), 10, 0).shape == (10, 1, 28, 28)


def test_the_section_survives_saving_and_is_known_to_sweeps() -> None:
    content = {
        "experiment": {
            "data": "digits-sklearn",
            "model": "lenet",
            "algorithm": "fedavg",
            "public": {"name": "digits-sklearn", "samples": 9, "domains": ["plain"]},
        }
    }
    experiment = load(content).experiment
    assert load({"experiment": experiment.model_dump(mode="json")}).experiment == experiment
    assert load(content, ["public=photos"]).experiment.public.options["samples"] == 5000
    keys = {data_key(load(content, [f"public.samples={n}"]).experiment) for n in (9, 10)}
    assert len(keys) == 2
    shared = SharedDataset.of(
        load_once("digits-sklearn", experiment.data.options, experiment.public)
    )
    assert (
        len(build_spec(experiment, shared).data.public)
        == len(build_spec(experiment).data.public)
        == 9
    )
    forms = schema()["$defs"]["PublicChoice"]["anyOf"]
    assert all("samples" in form["properties"] for form in forms if "properties" in form)


@pytest.mark.parametrize(
    ("public", "message"),
    [
        ("photo", "did you mean 'photos'"),
        ({"name": "photos", "samples": 1}, r"public\.samples: found 1"),
        ({"name": "photos", "sample": 100}, "no option 'sample'"),
        ({"name": "photos", "samples": 9000}, "5000 training images"),
        ({"name": "random", "samples": 10}, "taken from images"),
    ],
)
def test_what_cannot_serve_is_refused(public: Any, message: str) -> None:
    with pytest.raises(FlrayError, match=message):
        world_of(public=public)


def test_private_features_and_other_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match="private images only"):
        world_of(data="random", public="photos")
    with pytest.raises(ConfigError, match="2 channels"):
        fit_to_shape(np.zeros((1, 3, 4, 4), np.uint8), (2, 4, 4))


def test_a_method_without_public_data_is_told_how_to_get_some() -> None:
    with pytest.raises(ConfigError, match=r"experiment\.public: photos"):
        world_of(data={"name": "random", "samples": 40}, partition={"name": "iid", "clients": 2})
