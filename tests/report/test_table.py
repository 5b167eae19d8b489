"""Tables of a sweep in every form, against numbers that are known."""

import io
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from flray import registry
from flray.cli import comparison
from flray.config.loader import load
from flray.records import Journal, directory, read_events
from flray.reporting.build import _in_print, markdown, render_page
from flray.reporting.build import render_latex as latex
from flray.results import ALIKE_NOTE, ResultSet, alike
from flray.results.costs import costs
from flray.results.formatting import NOT_REACHED, cost_row, format_measured, terminal
from flray.results.load import load_folder
from flray.results.measures import value
from flray.results.sweep import SMOKE_NOTE, SweepResult, build_table
from flray.results.table import Cell, Table
from flray.tuning.sweep import finish
from tests.helpers import Settings, cases
from tests.messages import refused
from tests.report.conftest import Edited, kept_copy, of_trials, one_round, plain


def shown(table: Table) -> str:
    screen = Console(width=160, file=io.StringIO())
    screen.print(terminal(table))
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def heads(table: Table) -> list[str]:
    return [" ".join(column.head) for column in table.columns]


def test_the_papers_table_in_every_form(source: ResultSet, sweep: Path) -> None:
    table = build_table(source)
    assert list(table.rows) == ["none", "full"] and heads(table) == ["CIFAR-10", "CIFAR-100"]
    none, full = table.rows["none"], table.rows["full"]
    assert none[0].mean == pytest.approx(71.0) and none[0].std == pytest.approx(math.sqrt(2))
    assert (none[0].printed, full[1].printed) == (78.61, 58.15)
    assert full[0].difference == pytest.approx(82.0 - 82.35)
    assert not any(cell.best for cell in (*none, *full)), "two seeds decide nothing"
    assert table.title == "FedSKC table5: modules"
    run = "run on digits-sklearn (16 training samples) for 4 rounds"
    assert {"differs from the paper: other data", run} <= set(table.notes)
    begun = [replace(one, history=one.history[:1]) for one in source.trials]
    notes = build_table(replace(source, trials=begun)).notes
    assert run.replace("4 rounds", "1 round") in notes
    text, line = markdown(table, costs(source)), "CIFAR-100: none and full: not decided"
    assert "| full | 82.00 ± 2.83<br>82.35 (-0.35) | 50.00 ± 0.00<br>58.15 (-8.15) |" in text
    assert "paired t-tests over the seeds" in text and "### Costs · CIFAR-10" in text
    assert "Mean ± standard deviation over 2 seeds; shares" in text
    assert text.index(line) < text.index("| full |")
    tex = latex(table)
    assert r"full & 82.00 $\pm$ 2.83 & 50.00 $\pm$ 0.00 \\" in tex
    assert tex.count("{") == tex.count("}") and r"\emph{78.61 (-7.61)}" in tex
    assert r"\begin{table}[t]" in tex and tex.startswith("% mean ranks")
    assert tex.index(line) < tex.index(r"\begin{table}")
    assert r"\caption{$\gamma$ = 0.5 \& $\sigma$" in latex(replace(table, title="γ = 0.5 & σ"))
    page = render_page(source, table, (), (), {})
    assert page.index(line) < page.index("<table") and "smoke" not in text
    printed = shown(table)
    assert printed.startswith("What can be concluded:\n- mean ranks") and line in printed
    swept = SweepResult(sweep)
    assert swept.conclusions == table.conclusions and shown(swept.main_table) == printed


@pytest.mark.parametrize("paper", [True, False])
def test_bold_is_what_is_decided_better_than_all_others(source: ResultSet, paper: bool) -> None:
    source.config["paper"] = source.config["paper"] if paper else None
    for place, lead in (("CIFAR-10", 9.0), ("CIFAR-100", -0.6)):
        for name, ahead in (("none", 0.0), ("full", lead)):
            label = {"arms.data": place, "arms.modules": name}
            (first, *_) = own = [one for one in source.trials if one.setting == label]
            for seed in range(5):
                history, spread = first.history.copy(), (seed % 3) * (name == "full")
                history["global/common/accuracy"] = (70 + ahead + spread) / 100
                if seed < len(own):
                    own[seed].history = history
                else:
                    source.trials.append(replace(first, seed=seed, history=history))
    table = build_table(replace(source))
    marked = []
    for label, row in table.rows.items():
        cells = zip(table.columns, row, strict=True)
        marked += [(label, *at.head) for at, cell in cells if cell.best]
    assert marked == [("full", "CIFAR-10") if paper else ("full CIFAR-10", "score")]
    assert "in bold: decided to be better than every other" in markdown(table, costs(source))
    assert "**79" in markdown(table, costs(source)) and r"\textbf{" in latex(table)
    assert 'class="best"' in render_page(source, table, (), (), {})


def test_a_named_reference_is_compared_with_all_others(edited: Edited) -> None:
    source = edited(lambda config: config["sweep"].update(reference="none"))
    assert {one.reference for one in build_table(source).studies.each} == {"none"}
    assert {one.reference for one in build_table(source, "full").studies.each} == {"full"}
    refused(build_table, source, "ful")
    table = build_table(edited(lambda config: config["sweep"].update(reference="fedavg")))
    assert {one.reference for one in table.studies.each} == {None}
    (note,) = [one for one in table.notes if one.startswith("sweep.reference: found 'fedavg'")]
    assert note.endswith("all pairs are compared")


@pytest.mark.parametrize(
    "chosen", [{}, {"search": "grid"}, {"scheduler": {"name": "asha"}}, {"repeat": {"data": 2}}]
)
def test_advice_is_never_refused(edited: Edited, chosen: dict[str, object], tmp_path: Path) -> None:
    source = edited(lambda config: (plain(config), config["sweep"].update(chosen)))
    for trial in source.trials if "repeat" in chosen else ():
        trial.fingerprints["data"] = f"{trial.seed:064}"  # a draw for each seed
    kept = kept_copy(source, tmp_path)
    for one in [source, kept] if "repeat" in chosen else [source]:
        assert any("sweep.until" in line for line in build_table(one).conclusions) != bool(chosen)


def test_trials_that_stopped_early_or_have_not_ended_are_not_compared(sweep: Path) -> None:
    directory.update(sweep / "trials" / "0001", status="running")
    directory.update(sweep / "trials" / "0008", status="stopped")
    table = build_table(load_folder(sweep))
    (study,) = table.studies.each
    assert (study.place, sorted(study.values)) == ("CIFAR-10", ["full", "none"])
    assert sorted(study.values["none"]) == [1]
    assert table.studies.left_out == ["CIFAR-100 full: stopped early, not compared"]
    assert "1 of 8 trials stopped early, after 4 rounds" in table.notes


@pytest.mark.parametrize("paper", [True, False])
def test_failed_and_missing_trials_are_said(sweep: Path, edited: Edited, paper: bool) -> None:
    def fail(number: int) -> None:
        why = "ValueError: no\ntrace"
        directory.update(sweep / "trials" / f"000{number}", status="failed", failure=why)

    fail(1)
    table = build_table(edited(plain if not paper else dict))
    (line,) = [line for line in table.conclusions if line.startswith("CIFAR-10: ")]
    assert line.endswith("1 common seed; none failed at 1 of 2 seeds (ValueError: no)")
    assert "trial 0001 (none CIFAR-10 seed=0) failed: ValueError: no" in table.notes
    assert f"none{' ·' * paper} CIFAR-10: 1 of 2 seeds" in table.notes
    fail(2)
    lost = "CIFAR-10 none: failed at each of its seeds, not compared"
    table = build_table(load_folder(sweep))
    assert lost in table.conclusions
    assert any(note.startswith("trials 0001 (none CIFAR-10 seed=0), 0002") for note in table.notes)
    directory.update(sweep / "trials" / "0002", status="running")
    notes = build_table(load_folder(sweep)).notes
    assert "1 of 8 trials have not ended: the table is not complete" in notes
    assert "not ended, counted with what it has reached: none CIFAR-10 seed 1, round 4" in notes
    fail(3)  # once, where it is so in every column
    assert not paper or "none: 1 of 2 seeds" in build_table(load_folder(sweep)).notes


def test_the_note_in_mlflow_begins_with_what_can_be_concluded(sweep: Path) -> None:
    with Journal(sweep / directory.JOURNAL) as journal:
        result = finish(sweep, journal)
    tags: dict[str, str] = {}
    for event in read_events(sweep / directory.JOURNAL):
        tags |= event["tags"] if event["type"] == "tags" else {}
    conclusions = [f"- {one}" for one in result.conclusions]
    assert tags["mlflow.note.content"].splitlines()[: len(conclusions) + 1] == [*conclusions, ""]
    assert (sweep / "table.txt").read_text(encoding="utf-8").startswith("What can be concluded:")


def test_measures(source: ResultSet) -> None:
    trial = source.trials[0]
    assert value(trial, "auto") == pytest.approx(70.0)
    assert value(trial, "own/accuracy", "a") == pytest.approx(75.0)
    assert value(trial, "others/accuracy", "a") == pytest.approx(65.0)  # of the one model on b
    assert value(replace(trial, protocol="mean-last", last=2), "auto") == pytest.approx(65.0)
    # Without validation: the last.
    assert value(replace(trial, protocol="best"), "auto") == pytest.approx(70.0)
    assert value(trial, "auto >= 55") == 3 and value(trial, "auto >= 90") == math.inf
    assert value(trial, "hours") == pytest.approx(6 / 3600)
    assert value(trial, "memory") == pytest.approx(100)
    trial.history["global/common/top5"] = [0.5, 0.6, 0.7, 0.8]
    assert value(trial, "pooled/top5") == pytest.approx(80.0)
    personal = replace(trial, metric="personal/local/accuracy")
    assert value(personal, "pooled/top5 | auto") != value(trial, "pooled/top5")
    assert value(trial, "own/top5 | pooled/top5 | own/accuracy") == pytest.approx(80.0)
    assert value(trial, "own/top5 | own/accuracy", "a") == pytest.approx(75.0)
    assert math.isnan(value(trial, "own/top5 | others/top5"))
    assert math.isnan(value(trial, "own/dice")) and math.isnan(value(trial, "own/accuracy", "c"))
    trial.history["global/validation/accuracy"] = [0.1, 0.9, 0.9, 0.3]
    assert value(replace(trial, protocol="best"), "auto") == pytest.approx(50.0)
    start = "global/local/accuracy/client/"  # A domain's value is the mean of its clients
    names = {f"{start}a": f"{start}usps0", f"{start}b": f"{start}usps1"}
    trial.history = trial.history.rename(columns=names)
    assert value(trial, "own/accuracy", "usps") == pytest.approx(70.0)


def test_costs_and_how_many_seeds_reach_the_target(source: ResultSet) -> None:
    """Full ends with 0.80 and 0.84: a mean above the target of 0.81, which one of two seeds reaches."""
    found = {(cost.group, cost.label): cost for cost in costs(source)}
    one = found["CIFAR-10", "full"]
    assert one.target == pytest.approx(0.9 * 0.82)
    assert one.rounds == pytest.approx(3.5)  # 0.80, 0.84 after four rounds, 0.70, 0.74 after three
    assert (one.up, one.down, one.seconds, one.round_seconds) == (4e6, 8e6, 6.0, 1.5)
    assert one.steps == 1200 and cost_row(one)[2] == "1,200"
    assert found["CIFAR-10", "none"].rounds == math.inf
    assert costs(source, 55)[0].rounds == pytest.approx(3.0)
    found = {(cost.group, cost.label): cost for cost in costs(source, 81)}
    full, none = found["CIFAR-10", "full"], found["CIFAR-10", "none"]
    assert (full.rounds, full.reached, full.seeds) == (4.0, 1, 2)
    assert cost_row(full)[1] == "4.0 (1 of 2 seeds)"
    assert (none.reached, cost_row(none)[1]) == (0, NOT_REACHED)
    assert format_measured(Cell({0: math.inf, 1: 4.0, 2: 6.0})) == "5.00 (2 of 3 seeds)"
    assert format_measured(Cell({0: math.inf, 1: math.inf}, rounds=True)) == NOT_REACHED


def test_latex_names_methods_as_papers_do(source: ResultSet) -> None:
    table = build_table(source)
    written = {"fedco2": "Fed-CO2", "fcclplus lr=0.1": "FCCL+ lr=0.1", "fedavgm": "FedAvgM"}
    written |= {"local": "Local", "LCL alone": "LCL alone", "fedco": "fedco", "moon_x": r"moon\_x"}
    named = replace(table, rows=dict.fromkeys(written, table.rows["none"]))
    assert re.findall(r"^(.*) & 71\.00", latex(named), re.M) == list(written.values())
    ours = [name for name in registry.algorithms.names() if not registry.algorithms.is_own(name)]
    assert len(ours) > 30  # a method's file begins with its name
    assert [name for name in ours if _in_print(name) == name] == []


def test_latex_of_a_wide_table_is_small_and_across_columns(source: ResultSet) -> None:
    table = build_table(source)
    rows = {name: cells * 4 for name, cells in table.rows.items()}
    wide = replace(table, columns=table.columns * 4, rows=rows, conclusions=[])
    lines = latex(wide).splitlines()
    small = r"\centering\footnotesize\setlength{\tabcolsep}{3pt}"
    assert lines[1:3] == [r"\begin{table*}[t]", small]
    assert lines[4:6] == [r"\label{tab:fedskc-table5-modules}", r"\begin{tabular}{lrrrrrrrr}"]
    assert lines[lines.index(r"\bottomrule") + 1 :][:1] == [r"\end{tabular}"]
    assert lines[-1] == r"\end{table*}"


def test_without_a_paper_a_row_per_setting_is_best_first(sweep: Path, edited: Edited) -> None:
    for path in sweep.glob("trials/*/partition.json"):  # a domain is the same client at every seed
        path.write_text(path.read_text().replace('"domain": "d"', '"domain": "e"', 1))
    table = build_table(edited(plain))
    data = [f"{name} CIFAR-10" for name in ("full", "none")]
    assert list(table.rows) == [*data, "none CIFAR-100", "full CIFAR-100"]
    assert heads(table) == ["score", "a", "b"]
    assert table.rows["full CIFAR-10"][1].mean == pytest.approx(87.0)


def test_settings_chosen_by_a_validation_loss_have_the_least_first(edited: Edited) -> None:
    def change(config: Settings) -> None:
        plain(config)
        config["sweep"].update(metric="global/validation/loss", mode="min")

    source = edited(change)
    for trial in source.trials:
        trial.metric, trial.chosen_by = "global/common/accuracy", "global/validation/loss"
        trial.history["global/validation/loss"] = 1 - trial.history["global/common/accuracy"]
    table = build_table(source)
    assert table.columns[0].measure == "global/validation/loss"
    means = [row[0].mean for row in table.rows.values()]
    assert means == sorted(means) and means[0] == pytest.approx(0.18)


def test_nothing_to_report_is_refused(sweep: Path) -> None:
    for journal in sweep.glob("trials/*/journal.jsonl"):
        journal.write_text("")
    refused(load_folder, sweep)
    assert "78.61" in shown(SweepResult(sweep).main_table)  # a sweep whose trials all failed


@cases(
    "paper",
    """{measures: {x: acc >= .}}, {measures: {x: others}}, {measures: {x: auto | pooled}},
    {printed: {modules: {none: {methd: fedavg}}}}""",
)
def test_a_table_that_no_report_can_make_is_refused_at_once(
    content: Settings, paper: Settings
) -> None:
    content["paper"] |= paper
    refused(load, content)


def test_a_row_of_the_paper_that_is_not_run_shows_its_printed_numbers(edited: Edited) -> None:
    def change(config: Settings) -> None:
        config["arms"]["modules"] |= {"LCL": {}, "unheard of": {}}
        lcl = {"method": "fedskc", "setting": "dirichlet:0.2,ablation:lcl"}
        config["paper"]["printed"]["modules"]["LCL"] = lcl

    table = build_table(edited(change))
    assert list(table.rows) == ["none", "full", "LCL"]
    assert [cell.printed for cell in table.rows["LCL"]] == [80.45, 56.83]
    assert all(math.isnan(cell.mean) and not cell.best for cell in table.rows["LCL"])


def test_clients_that_ran_are_the_columns_where_the_paper_printed_none(edited: Edited) -> None:
    """A paper's table per client, with data of one's own."""

    def change(config: Settings) -> None:
        own = {"CIFAR-10": {"dataset": "mine"}, "CIFAR-100": {"dataset": "mine too"}}
        config["paper"] |= {"name": "fedco2", "table": "table1", "clients": {}}
        config["paper"]["printed"] = {"data": own}

    table = build_table(edited(change))
    assert set(table.rows) == {"none", "full"} and len(table.columns) > 2
    assert all(cell.values and not cell.printed_text for cell in table.rows["full"])


def test_an_odd_printed_number_is_named_by_row_and_column(edited: Edited) -> None:
    def change(config: Settings) -> None:
        modules = {"none": {"method": "local"}, "full": {"method": "fedco2"}}
        data = {"CIFAR-10": {"dataset": "digits5"}, "CIFAR-100": {"dataset": "nothing"}}
        printed = {"modules": modules, "data": data}
        config["paper"] |= {"name": "fedco2", "table": "table7", "printed": printed}

    note = "printed number of none (CIFAR-10): avg mismatch as printed"
    assert note in build_table(edited(change)).notes


def test_a_smoke_run_says_so_first(edited: Edited) -> None:
    table = build_table(edited(lambda config: config["experiment"].update(name="made-smoke")))
    assert table.title.endswith(" (smoke run)") and table.notes[0] == SMOKE_NOTE
    assert table.conclusions == ["nothing can be concluded from a smoke run"]
    for form in (markdown(table, ()), latex(table)):
        assert "(smoke run)" in form and "its numbers mean nothing" in form


def test_one_seed_has_no_deviation(sweep: Path) -> None:
    for trial in sorted(sweep.glob("trials/*")):
        if directory.read(trial)["seed"] == 1:
            shutil.rmtree(trial)
    text = markdown(build_table(load_folder(sweep)), ())
    assert "Values of one seed, without a deviation; shares" in text
    assert "±" not in text.replace("± 0.", "")


def test_clients_that_are_others_at_each_seed_or_many_give_way_to_quantiles(edited: Edited) -> None:
    source = edited(plain)

    def tables() -> SweepResult:  # as the trials are now, whatever is in their folder
        result = SweepResult(Path(source.where))
        result.data = source
        return result

    for trial in source.trials:
        trial.fingerprints = {"partition": "p"}
    assert heads(build_table(source))[1:] == ["a", "b"]
    for trial in source.trials:
        trial.fingerprints = {"partition": f"p{trial.seed}"}
    table = build_table(source)
    assert heads(table)[1:] == ["10 % of clients", "median client", "90 % of clients"]
    # At the two seeds the clients have 85 and 75, 89 and 79 %.
    found = [cell.values for cell in table.rows["full CIFAR-10"][1:]]
    assert found == [pytest.approx({0: x, 1: x + 4}) for x in (76.0, 80.0, 84.0)]
    assert any(note.startswith("median client, ") for note in table.notes)
    trials = tables().results
    assert {"client/a", "clients/median client"} <= set(trials)
    assert trials["clients/median client"].iloc[-4:-2].tolist() == pytest.approx([0.8, 0.84])

    for trial in source.trials:
        for number in range(13):
            trial.history[f"global/local/accuracy/client/c{number}"] = 0.5
        trial.values.clear()
    for stay in (False, True):  # the summary keeps them
        for trial in source.trials:
            trial.fingerprints = {"partition": "p" if stay else f"p{trial.seed}"}
        assert heads(build_table(source))[1] == "10 % of clients"
        summary = tables().summary
        assert "clients/median client" in summary and ("client/c12" in summary) == stay


def test_places_and_shares_of_the_variance_are_in_every_format(edited: Edited) -> None:
    def change(config: Settings) -> None:
        del config["paper"], config["arms"]["data"]

    source = edited(change)
    for trial in source.trials:  # the data sets become partitions by seeds of their own
        trial.setting["partition.seed"] = int("100" in str(trial.setting.pop("arms.data")))
    table = build_table(source)
    assert [one.name for one in table.variances] == ["none", "full"]
    # 70, 72 and 50, 52: between the partitions 200, between the seeds 2, nothing together.
    assert [*table.variances[0].shares.values()] == pytest.approx([200 / 202, 2 / 202, 0.0])
    for text in (shown(table), markdown(table, ()), render_page(source, table, (), (), {})):
        assert "Shares of the variance" in text and "99 %" in text and "who holds what" in text
        assert "Settings at each" not in text and "2 partitions x 2 seeds, 4 runs" in text
    source.config["sweep"]["places"] = ["partition.seed"]
    table = build_table(source)
    for text in (shown(table), markdown(table, ()), render_page(source, table, (), (), {})):
        # The main table has a row for each setting at each place: here the places are columns.
        assert "Settings at each of 2 places" in text and "mean rank" in text
    assert "| full | 82.00 ± 2.83 | 50.00 ± 0.00 | 1.50 |" in markdown(table, ())


COMMON, LOCAL, OWN = "global/common/accuracy", "global/local/accuracy", "personal/local/accuracy"


def test_only_what_is_beside_clients_models_is_alike() -> None:
    others = ["global/common/dice", OWN], [COMMON, "personal/others/accuracy"]
    for metrics in ([COMMON, COMMON], [OWN, OWN], *others):
        assert alike(metrics) == metrics
    assert alike([COMMON, OWN, ""]) == [LOCAL, OWN, ""]


def test_the_common_test_set_in_which_large_clients_weigh_more_is_not_compared() -> None:
    trials = []
    for seed in (0, 1, 2):  # a large client on which both score 0.2, and a small one, 0.9
        more = 0.001 * seed
        values = {COMMON: 0.25 + more, LOCAL: 0.55 + more, "global/local/loss": 1.0}
        trials.append(one_round("fedavg", seed, COMMON, **values))
        trials.append(one_round("local", seed, OWN, **{OWN: 0.55 - 2 * more}))
    table = build_table(of_trials(trials))
    (study,) = table.studies.each
    assert study.values["fedavg"] == pytest.approx({0: 55.0, 1: 55.1, 2: 55.2})
    assert "not decided" in table.conclusions[0] and ALIKE_NOTE in table.notes
    alone = build_table(of_trials(trials[::2]))
    assert alone.rows["fedavg"][0].mean == pytest.approx(25.1) and ALIKE_NOTE not in alone.notes


def test_sweeps_are_compared_setting_by_setting() -> None:
    def swept(level: float, *methods: str, partition: str = "p") -> ResultSet:
        values = {seed: {OWN: level + seed * level / 10} for seed in (0, 1)}
        trials = [one_round(name, s, OWN, **values[s]) for name in methods for s in (0, 1)]
        for trial in trials:
            trial.fingerprints = {"data": "d", "partition": partition}
        return of_trials(trials)

    one, other = swept(0.4, "fedavg"), swept(0.6, "local")
    ((label, *_, difference, interval),) = comparison._sweep_values(one, other)
    assert label == "fedavg, local" and interval.endswith("(n=2)")
    assert float(difference) == pytest.approx(0.21)
    third = swept(0.6, "local", "fedbn", partition="q")
    rows = {row[0]: row[1:] for row in comparison._sweep_values(other, third)}
    assert set(rows) == {"local", "fedbn"} and not rows["fedbn"][0]
    assert rows["local"][2] and not rows["local"][3], "other partitions"
    other.trials[0].status = "failed"
    ((_, _, mean, _, interval),) = comparison._sweep_values(one, other)
    assert mean == "0.6600 (1 seed)" and not interval, "the value of a round before it failed"
    for trial in one.trials:
        trial.metric = "personal/local/loss"
        trial.history = pd.DataFrame({"round": [1], trial.metric: [2.5]})
    rows = [row[1:] for row in comparison._sweep_values(one, third)]
    assert all(row[2:] == ("", "") for row in rows), "a loss less an accuracy"
