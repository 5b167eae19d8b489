"""Many clients on few actors: seconds per task with 500 clients against 20, personalised, in one run."""

from dataclasses import dataclass
from statistics import median

from runner import MIB, Steps, experiment, on_actors, option, ratio, show, take_turns

from flray.ray_session import ray_session


@dataclass
class Options:
    few: int = 20
    many: int = 500
    fraction: float = option(0.05, "share of the many clients in a round")
    samples: int = option(500, "per client")
    rounds: int = 15
    actors: int = 2
    algorithm: str = "fedbn"
    model: str = "lenet"


def main(options: Options) -> None:
    cohort = round(options.many * options.fraction)
    sizes = {options.few: min(cohort, options.few), options.many: cohort}
    with ray_session(None) as available:
        available = {**available, "CPU": available["CPU"] / 2}
        steps = {}
        for clients, size in sizes.items():
            content = experiment(
                clients,
                options.samples,
                algorithm=options.algorithm,
                model={"name": options.model, "norm": "batch"},
                local={"epochs": 1, "batch_size": 50},
                participation={"clients": size},
                # both pools stay resident and take turns
                resources={"actors": options.actors, "cpus_per_actor": 0.5},
            )
            steps[clients] = Steps(on_actors(content, available))
        times = take_turns(steps, options.rounds)
        for one in steps.values():
            one.federation.close()
    tasks, rows = {}, []
    for clients, size in sizes.items():
        tasks[clients] = [seconds * options.actors / size for seconds in times[clients]]
        held = (steps[clients].metrics[-1][f"memory/{who}"] / MIB for who in ("server", "client"))
        rows.append((clients, size, median(tasks[clients]), *held))
    show(
        f"{options.algorithm}, {options.samples} images per client, {options.model}, "
        f"{options.actors} actors",
        "clients | per round | median s per task and actor :.4f | server MiB :.0f | largest client actor MiB :.0f",
        rows,
    )
    found = ratio(tasks[options.many], tasks[options.few])
    print(f"time per task, {options.many} clients against {options.few}: {found:.3f} (limit 1.15)")
