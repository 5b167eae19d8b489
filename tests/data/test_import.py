import subprocess
import sys

HEAVY = {"ray", "mlflow", "sklearn", "matplotlib", "pandas", "scipy"}


def test_importing_the_package_is_light_and_registers_everything() -> None:
    code = (
        "import sys; from flray.registry import augmentations, datasets, partitions; "
        "print(datasets.names(), partitions.names(), augmentations.names()); "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "['camelyon17', 'cifar-10', 'cifar-100', 'cifar10-jpeg', 'digit-five', 'digits-sklearn', "
        "'digits5', 'digits5-local', 'domainnet', 'eeg', 'eeg-synthetic', 'emnist', "
        "'fashion-mnist', 'fc100', 'fundus', 'fundus-synthetic', 'glyphs', 'mnist', 'mnist-m', "
        "'office-caltech10', 'office-home', 'office31', 'pacs', 'photos', 'random', 'svhn', "
        "'synthdigits', 'tiny-imagenet', 'usps', 'vlcs'] ['dirichlet', 'dirichlet-equal', "
        "'domain-dirichlet', 'domains', 'iid', 'pachinko', 'pathological'] ['crop', 'flip', "
        "'grayscale', 'jitter', 'resized', 'rotation']",
        "[]",
    ]
