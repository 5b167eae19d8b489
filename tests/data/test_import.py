import subprocess
import sys

from flray import registry

HEAVY = {"ray", "mlflow", "sklearn", "matplotlib", "pandas", "scipy"}
KINDS = ("datasets", "partitions", "augmentations")


def test_importing_the_package_is_light_and_registers_everything() -> None:
    code = (
        f"import sys; from flray.registry import ALL; [print(ALL[kind].names()) for kind in {KINDS}]; "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    built_in = [
        sorted(set(registry.ALL[kind].names()) - set(registry.ALL[kind].added())) for kind in KINDS
    ]
    assert {"vlcs", "usps"} <= set(built_in[0]) and "iid" in built_in[1] and "crop" in built_in[2]
    assert done.stdout.splitlines() == [*map(str, built_in), "[]"]
