"""What reaches a network: augmentation, normalisation, and public data from any image data set."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as reference

from flray.config.experiment import Local
from flray.config.loader import load
from flray.config.schema import schema
from flray.data import augment as own_augment
from flray.data import load_dataset
from flray.data.loading import fit_to_shape, load_once, public_images
from flray.federation import FederationSpec, SharedDataset
from flray.federation.building import build_spec
from flray.federation.worker.resources import WorkerResources
from flray.registry import augmentations
from flray.rng import torch_generator
from flray.tuning.resources import data_key
from tests.algorithms.helpers import spec_of
from tests.helpers import built, cases, small
from tests.messages import refused


def draws(**key: int) -> torch.Generator:
    return torch_generator(0, "augmentation", **key)


def test_a_crop_is_a_shift_of_at_most_the_padding() -> None:
    images = torch.arange(1, 1 + 200 * 2 * 36, dtype=torch.float64).reshape(200, 2, 6, 6)
    cropped = own_augment.random_crop(images, draws(), padding=2)
    assert cropped.shape == images.shape and cropped.dtype == torch.float64
    seen = set()
    for before, after in zip(images, cropped, strict=True):
        padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
        parts = padded.unfold(1, 6, 1).unfold(2, 6, 1)  # [2, 5, 5, 6, 6]
        (shift,) = (parts == after[:, None, None]).all(4).all(3).all(0).nonzero().tolist()
        seen.add(tuple(shift))
    assert len(seen) == 25
    assert torch.equal(own_augment.random_crop(images, draws(), padding=0), images)


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.arange(400 * 4).reshape(400, 1, 1, 4)
    flipped = own_augment.random_flip(images, draws())
    same = (flipped == images).all(dim=(1, 2, 3))
    mirrored = (flipped == images.flip(-1)).all(dim=(1, 2, 3))
    assert (same ^ mirrored).all() and 160 < int(mirrored.sum()) < 240


def test_a_resized_crop_shows_a_part_of_the_image_at_its_size() -> None:
    """On a ramp in x and y, bilinear parts stay ramps: their slope is the side shown, at least sqrt(0.2 * 3/4)."""
    ramp = torch.arange(16, dtype=torch.float64)
    images = torch.stack([ramp.expand(16, 16), ramp.expand(16, 16).T]).expand(300, 2, 16, 16)
    cropped = own_augment.random_resized_crop(images, draws())
    assert cropped.shape == images.shape and cropped.dtype == torch.float64
    across, down = cropped[:, 0, 8, 4:12].diff(dim=1), cropped[:, 1, 4:12, 8].diff(dim=1)
    for slopes in (across, down):
        assert float((slopes - slopes[:, :1]).abs().max()) < 1e-9
    shown = across[:, 0] * down[:, 0]
    assert 0.2 - 1e-9 <= float(shown.min()) < 0.25 and 0.9 < float(shown.max()) <= 1 + 1e-9
    ratios = across[:, 0] / down[:, 0]
    assert float(ratios.min()) >= 3 / 4 - 1e-9 and float(ratios.max()) <= 4 / 3 + 1e-9
    assert float(cropped.min()) >= 0 and float(cropped.max()) <= 15


def test_what_is_no_image_is_left_alone() -> None:
    features = torch.rand(5, 3)
    assert own_augment.augment_batch(features, "resized", draws()) is features
    images = torch.rand(5, 1, 8, 8)
    assert own_augment.augment_batch(images, "none", draws()) is images
    for how in sorted(own_augment.PRESETS.keys() - {"none"}):
        assert not torch.equal(own_augment.augment_batch(images, how, draws()), images)


def photos(batch: int = 6, height: int = 9, width: int = 7) -> torch.Tensor:
    """Return 8-bit colour images in [0, 1], gray and saturated pixels among them."""
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(256, (batch, 3, height, width), generator=generator, dtype=torch.uint8)
    raw[0, :, 0] = 128
    raw[-1, 0, 2:4], raw[-1, 1, 2:4] = 255, 0
    return raw.float() / 255


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("channels", [1, 3])
def test_colours_are_those_of_torchvision(name: str, channels: int) -> None:
    factors = [-0.5, -0.1, 0.0, 0.04, 0.1, 0.5] if name == "hue" else [0.0, 0.6, 1.0, 1.3, 1.4, 3.0]
    images, theirs = photos()[:, :channels], getattr(reference, f"adjust_{name}")
    changed = getattr(own_augment, name)(images, torch.tensor(factors))
    expected = [theirs(image, factor) for image, factor in zip(images, factors, strict=True)]
    torch.testing.assert_close(changed, torch.stack(expected), rtol=0, atol=2e-6)


def test_gray_rotations_and_flips_are_those_of_torchvision() -> None:
    images, angles = photos(), [-170.0, -15.0, 0.0, 3.0, 45.0, 90.0]
    for some in (images, images[:, :1]):
        gray = reference.rgb_to_grayscale(some, num_output_channels=3)
        own = own_augment.gray(some).expand(-1, 3, -1, -1)
        torch.testing.assert_close(own, gray, rtol=0, atol=1e-6)
    pairs = zip(images, angles, strict=True)
    expected = [reference.rotate(image, a, InterpolationMode.BILINEAR) for image, a in pairs]
    turned = own_augment.rotate(images, torch.tensor(angles))
    torch.testing.assert_close(turned, torch.stack(expected), rtol=0, atol=1e-4)
    flipped = own_augment.random_flip(images, torch.Generator(), p=1.0)
    assert torch.equal(flipped, reference.horizontal_flip(images))
    assert torch.equal(own_augment.random_flip(images, torch.Generator(), p=0.0), images)


def test_random_angles_stay_within_their_bounds() -> None:
    """A bar from the middle to the right ends where its angle says; all angles of the range occur."""
    images = torch.zeros(400, 1, 41, 41)
    images[:, :, 20, 20:40] = 1
    turned = own_augment.random_rotation(images, draws(), degrees=30)
    places = torch.arange(41.0)
    mass = turned.sum((2, 3))
    down = (turned * (places[:, None] - 20)).sum((2, 3)) / mass
    right = (turned * (places - 20)).sum((2, 3)) / mass
    angles = torch.rad2deg(torch.atan2(-down, right)).flatten()
    assert -31 < float(angles.min()) < -28 and 28 < float(angles.max()) < 31
    assert abs(float(angles.mean())) < 3


def test_jitter_and_grayscale_take_their_share_of_images() -> None:
    """Jitter within its bounds."""
    images, jitter = photos(1).expand(1000, -1, -1, -1), augmentations.get("jitter")
    result = jitter(images, draws(), p=0.8)
    assert 750 < int((result != images).any(dim=(1, 2, 3)).sum()) < 850
    assert float(result.min()) >= 0 and float(result.max()) <= 1
    nothing = dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0)
    assert torch.equal(jitter(images, draws(), **nothing), images)
    only = jitter(images, draws(), **nothing | {"brightness": 0.4}, p=1)
    factors = only[:, 0, 0, 0] / images[:, 0, 0, 0]
    assert 0.6 <= float(factors.min()) < 0.61 and 1.39 < float(factors.max()) <= 1.4 + 1e-6
    result = augmentations.get("grayscale")(images, draws(), p=0.2)
    grayed = (result[:, :1] == result).all(dim=(1, 2, 3))
    assert 160 < int(grayed.sum()) < 240 and torch.equal(result[~grayed], images[~grayed])


def test_every_image_has_its_own_order_of_changes() -> None:
    """With brightness to at most double and then contrast to 0, or the reverse, what is cut off tells the order."""
    images = torch.stack([torch.full((200, 4, 4), v) for v in (0.2, 0.6, 0.9)], 1)
    images[:, :, :2] *= 0.5
    jitter = augmentations.get("jitter")
    options = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
    result = jitter(images, torch_generator(3, "augmentation"), p=1.0, **options)
    drawn = torch.rand((9, 200), generator=torch_generator(3, "augmentation"))
    functions = [getattr(own_augment, name) for name in options]
    factors = [*(0.6 + 0.8 * drawn[1:4]), 0.1 * (2 * drawn[4] - 1)]
    orders = drawn[5:].argsort(0)
    assert len({tuple(order) for order in orders.T.tolist()}) == 24
    for i in range(200):
        one = images[i : i + 1]
        for k in orders[:, i].tolist():
            one = functions[k](one, factors[k][i : i + 1])
        torch.testing.assert_close(result[i], one[0], rtol=0, atol=1e-6)


def steps(*given: object) -> object:
    return Local(augment=list(given)).augment


def test_colours_work_on_pixels_whatever_the_normalisation() -> None:
    images = photos(64, 8, 8)
    mean, std = torch.tensor([[0.4, 0.5, 0.6], [0.2, 0.3, 0.1]]).view(2, 3, 1, 1)
    how = steps("jitter", {"name": "grayscale", "p": 0.3})
    plain = own_augment.augment_batch(images, how, draws())
    normalised = own_augment.augment_batch((images - mean) / std, how, draws(), (mean, std))
    torch.testing.assert_close(normalised * std + mean, plain, rtol=0, atol=2e-6)
    assert not torch.allclose(plain, images)


def test_presets_are_their_steps_bit_for_bit() -> None:
    images = torch.randn(32, 3, 8, 8)
    for preset, names in own_augment.PRESETS.items():
        pair = (own_augment.augment_batch(images, one, draws()) for one in (preset, steps(*names)))
        assert torch.equal(*pair)
    crops = {"crop": own_augment.random_crop, "resized": own_augment.random_resized_crop}
    for preset, function in crops.items():
        generator = draws()
        expected = own_augment.random_flip(function(images, generator), generator)
        assert torch.equal(own_augment.augment_batch(images, preset, draws()), expected)


@pytest.mark.parametrize("name", augmentations.names())
def test_an_image_is_not_touched_by_its_neighbours(name: str) -> None:
    images, others = photos(40, 8, 8), photos(40, 8, 8)
    others[1::2] = 0.5
    first, again, beside, other = (
        own_augment.augment_batch(batch, steps(name), draws(round=r))
        for batch, r in ((images, 1), (images, 1), (others, 1), (images, 2))
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[0::2], beside[0::2])
    assert first.shape == images.shape and first.dtype == images.dtype
    assert torch.equal(images, photos(40, 8, 8)), "the batch is left alone"


def test_colours_and_normalisation_need_pixels() -> None:
    for shape in ((3, 32, 32), (1, 28, 28)):
        own_augment.check("strong", "here", shape, np.dtype("uint8"))
    own_augment.check("none", "here", (20,), np.dtype("float32"))
    own_augment.check("crop", "here", (3, 32, 32), np.dtype("float32"))
    refused(own_augment.check, "strong", "here", (3, 32, 32), np.dtype("float32"))
    refused(own_augment.check, "flip", "here", (20,), np.dtype("float32"))
    refused(own_augment.augment_pair, photos(), photos(), "strong", draws())
    data = {"name": "random", "samples": 20, "shape": [3, 8, 8]}
    refused(built, small(data=data, partition="domains", local={"augment": ["grayscale"]}))
    refused(spec_of, "fedavg", normalisation="none")
    refused(spec_with, normalisation="none", algorithm={"name": "lgmix", "inputs": "unit"})


@cases("how", "jitter, [crop, jiter], [{name: jitter, hue: 0.6}], [{name: crop, pading: 2}]")
def test_mistakes_in_steps_are_named(how: object) -> None:
    refused(load, {"experiment": small(local={"augment": how})})
    local = Local(augment=["crop", {"name": "jitter", "hue": 0.05}])
    assert Local.model_validate(local.model_dump(mode="json")) == local


@pytest.mark.parametrize("how", ["flip", "crop", "resized", steps("rotation", "flip")], ids=str)
def test_masks_go_where_their_pixels_go(how: str) -> None:
    square = torch.zeros(40, 2, 24, 24)
    square[:, 0, 8:14, 5:12] = 1
    square[:, 1, 9:11, 6:8] = 1
    moved, masks = own_augment.augment_pair(square, square.to(torch.uint8), how, draws())
    assert masks.dtype == torch.uint8 and set(masks.unique().tolist()) == {0, 1}
    assert torch.equal(masks, (moved >= 0.5).to(torch.uint8))
    assert not torch.equal(masks, square.to(torch.uint8))
    alone, labels = own_augment.augment_pair(square, torch.arange(40), how, draws())
    assert torch.equal(alone, moved) and torch.equal(labels, torch.arange(40))


DIGITS = {"name": "digits-sklearn", "samples": 8}
PHOTOS = {"name": "photos", "samples": 6, "crops": 20}
EXPERIMENT = small(data=DIGITS, public=PHOTOS, model="lenet")
COLOURED = {"data": {"name": "photos", "crops": 20}, "public": None}


def spec_with(**changes: Any) -> FederationSpec:
    return built(EXPERIMENT, **changes)


def first(spec: FederationSpec, public: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first sample as stored, scaled to [0, 1], and as a network sees it."""
    resources = WorkerResources(spec, torch.device("cpu"))
    rows = spec.data.clients[0].train[:1]
    samples = resources.public if public else resources.samples(rows)
    stored = spec.data.public[:1] if public else spec.data.x[rows]
    x, _ = samples.take(torch.arange(1))
    return torch.from_numpy(stored).double() / 255, x.double()


@cases(
    "how, mean, std",
    """[none, [0.0], [1.0]], [{mean: [0.5], std: [0.25]}, [0.5], [0.25]],
    [imagenet, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], [null, null, null]""",
)
def test_what_a_network_sees(how: Any, mean: Any, std: Any) -> None:
    """For ImageNet the numbers that are printed everywhere, by channel; by default the data set's own."""
    coloured = COLOURED if how == "imagenet" else {}
    spec = spec_with(**coloured, **({"normalisation": how} if how else {}))
    m, s = (
        torch.tensor(given or own).double().view(-1, 1, 1)
        for given, own in ((mean, spec.data.mean), (std, spec.data.std))
    )
    for public in (False, True) if spec.data.public is not None else (False,):
        stored, seen = first(spec, public)
        torch.testing.assert_close(seen, (stored - m) / s, rtol=1e-5, atol=1e-5)


@cases(
    "how",
    """imagnet, {mean: [0.5, 0.5], std: [0.5]}, {mean: [0.5], std: [0.0]}, {mean: [0.5]},
    {mean: [0.5, 0.5], std: [1.0, 1.0]}""",
)
def test_wrong_values_are_refused(how: Any) -> None:
    refused(spec_with, normalisation=how)


def world_of(**changes: Any) -> FederationSpec:
    method = {"name": "fcclplus", "public_size": 20, "public_batch_size": 10}
    data = {"name": "digits-sklearn", "samples": 24}
    model = {"name": "lenet", "norm": "batch"}
    return built(small(data=data, model=model, algorithm=method), **changes)


def test_a_choice_of_training_images_of_all_domains() -> None:
    source = load_dataset("digits-sklearn")
    pool = {x.tobytes(): d for d, one in enumerate(source.domains) for x in one.train_x}
    asked = ((300, 0), (100, 0), (100, 1))
    chosen, fewer, other = (public_images(source, (3, 32, 32), n, seed=seed) for n, seed in asked)
    homes = [pool[image.tobytes()] for image in chosen]  # only training images are in the pool
    assert len(chosen) == 300 and min(np.bincount(homes, minlength=4)) > 40
    assert {i.tobytes() for i in fewer} < {i.tobytes() for i in chosen}
    assert not np.array_equal(fewer, other)


@pytest.mark.parametrize(("old", "new"), [(8, 32), (50, 32), (32, 1)])
def test_resampling_is_that_of_pillow(old: int, new: int) -> None:
    images = np.random.default_rng(old).integers(0, 256, (3, 3, old, old + 4), dtype=np.uint8)
    found = fit_to_shape(images, (3, new, new))
    for image, result in zip(images, found, strict=True):
        pillow = Image.fromarray(image.transpose(1, 2, 0))
        expected = np.asarray(pillow.resize((new, new), Image.Resampling.BILINEAR))
        assert np.abs(result.astype(int) - expected.transpose(2, 0, 1)).max() <= 1


def test_colours_become_their_luma() -> None:
    image = np.array([250, 100, 40], dtype=np.uint8).reshape(1, 3, 1, 1).repeat(6, 2).repeat(6, 3)
    found = fit_to_shape(image, (1, 6, 6))  # 0.299 250 + 0.587 100 + 0.114 40
    assert found.shape == (1, 1, 6, 6) and set(found.ravel().tolist()) == {138}
    refused(fit_to_shape, image, (2, 6, 6))


def test_an_experiment_names_its_public_data() -> None:
    some = {"name": "photos", "crops": 60}
    chosen = {}, {"public": {**some, "samples": 40}}, {"public": {**some, "samples": 20}}
    own, other, fewer = (world_of(**one).data for one in chosen)
    assert own.public.shape == (1000, 3, 32, 32) and other.public.shape == (40, 3, 32, 32)
    assert {i.tobytes() for i in fewer.public} < {i.tobytes() for i in other.public}
    assert len({data.fingerprint for data in (own, other, fewer)}) == 3
    assert np.array_equal(own.x, other.x)


def test_the_section_survives_saving_and_is_known_to_sweeps() -> None:
    public = {"name": "digits-sklearn", "samples": 9, "domains": ["plain"]}
    content = {"experiment": small(public=public)}
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


@cases(
    "changes",
    """{public: photo}, {public: {name: photos, samples: 1}}, {public: {name: photos, sample: 100}},
    {public: {name: photos, crops: 50, samples: 90}}, {public: {name: random, samples: 10}},
    {data: &alone {name: random, samples: 40}, partition: &two {name: iid, clients: 2},
     public: {name: photos, crops: 50}}, {data: *alone , partition: *two }""",
)
def test_what_cannot_serve_is_refused(changes: dict[str, Any]) -> None:
    refused(world_of, **changes)
