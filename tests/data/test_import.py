import subprocess
import sys

HEAVY = {"ray", "mlflow", "sklearn", "matplotlib", "pandas", "scipy"}


def test_importing_the_package_is_light_and_registers_everything() -> None:
    code = ("import sys; from flray.registry import datasets, partitions; print(datasets.names(), partitions.names()); "
            f"print(sorted({HEAVY!r} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [
        "['digits-sklearn', 'digits5-local', 'eeg-synthetic', 'fundus-synthetic', 'glyphs', 'mnist', 'random', 'usps'] "
        "['dirichlet', 'dirichlet-equal', 'domains', 'iid', 'pathological']", "[]"]
