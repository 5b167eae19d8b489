from flray import registry
from tests.helpers import python

HEAVY = {"ray", "mlflow", "sklearn", "matplotlib", "pandas", "scipy", "torchvision"}
KINDS = ("datasets", "partitions", "augmentations", "models")


def test_importing_the_package_is_light_and_registers_everything() -> None:
    code = (
        f"import sys; from flray.registry import ALL; [print(ALL[kind].names()) for kind in {KINDS}]; "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = python(code)
    built_in = [
        sorted(set(registry.ALL[kind].names()) - set(registry.ALL[kind].added())) for kind in KINDS
    ]
    assert all(a in b for a, b in zip(("vlcs", "iid", "crop", "unet"), built_in, strict=True))
    assert done.stdout.splitlines() == [*map(str, built_in), "[]"]
