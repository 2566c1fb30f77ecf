"""The tables of docs/gate.md from gate.json, with exact binomial intervals."""

import math
import textwrap

BEGIN, END = "<!-- gate: written by tests/gate/prove_gate.py -->\n", "<!-- /gate -->"


def binomial_cdf(successes, trials, probability):
    if probability <= 0 or successes >= trials:
        return 1.0
    logs = (math.log(probability), math.log1p(-probability)) if probability < 1 else None
    if logs is None:
        return 0.0
    return sum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + k * logs[0]
            + (trials - k) * logs[1]
        )
        for k in range(successes + 1)
    )


def binomial_interval(successes, trials, confidence=0.95):
    """Clopper and Pearson's: exact, so a little wide."""
    each_end = (1 - confidence) / 2

    def solve(holds):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    low = solve(lambda p: 1 - binomial_cdf(successes - 1, trials, p) < each_end) if successes else 0.0
    high = solve(lambda p: binomial_cdf(successes, trials, p) > each_end) if successes < trials else 1.0
    return low, high


def rate(successes, trials):
    low, high = binomial_interval(successes, trials)
    return f"{successes} of {trials} ({100 * low:.1f} to {100 * high:.1f} %)"


def tables(gate):
    return "\n".join([*verdict_lines(gate), "", *noise_lines(gate), "", *simulation_lines(gate)]) + "\n"


def suites_with_alarm(gate):
    alarms = {}
    for row in gate["estimates"]:
        if not row["asked_percent"]:
            alarm = row["verdict"] == "regression"
            alarms[row["comparison"]] = alarms.get(row["comparison"], False) or alarm
    return sum(alarms.values())


def paragraph(*sentences):
    text = " ".join(sentences)
    return textwrap.wrap(text, 118, subsequent_indent="  " if text.startswith("- ") else "")


def verdict_lines(gate):
    aa, between, device = gate["aa"], gate["between_runs"], gate["device"]
    seconds, visible = aa["seconds_a_comparison"], aa["visible_slowdown"]
    lines = [
        *paragraph(
            f"Measured on an {device['name']} (driver {device['driver']})",
            f"on {between['sessions']} occasions.",
            "In brackets is the 95 % interval of the rate (Clopper and Pearson).",
            "Source: `results/h200/gate.json`.",
        ),
        "",
        "| planted | cells | called a regression | inconclusive | equivalent | delay as made |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| nothing | {aa['cells']} | {rate(aa['false_alarms'], aa['cells'])} "
        f"| {aa['inconclusive']} | {aa['equivalent']} | |",
    ]
    for one in gate["planted"]:
        made = one["made_percent"]
        lines.append(
            f"| {one['slowdown_percent']:g} % | {one['trials']} | {rate(one['caught'], one['trials'])} "
            f"| {one['inconclusive']} | {one['equivalent']} | {made['least']:.2f} to {made['most']:.2f} % |"
        )
    alarms = suites_with_alarm(gate)
    lines += [
        "",
        "A slowdown of 2 % is the tolerance itself and may go either way.",
        "",
        "| beyond single cells | |",
        "| --- | --- |",
        f"| comparisons of a build with itself that had a false alarm | {rate(alarms, aa['suite_runs'])} |",
        f"| time of a comparison, with everything | median {seconds['median']:.1f} s, "
        f"most {seconds['most']:.1f} s |",
        "| smallest slowdown that would have been a regression, where nothing was planted "
        f"| median {100 * (visible['median'] - 1):.1f} %, most {100 * (visible['most'] - 1):.1f} % |",
        "| how far a cell of the same build moved between comparisons "
        f"| at most {100 * between['largest']:.1f} %, on one occasion at most "
        f"{100 * between['largest_within_session']:.1f} % |",
        "",
        *paragraph(
            "Where two files are compared, the tolerance is widened by how far a cell moved",
            "between comparisons, rounded up.",
        ),
    ]
    return lines


def noise_lines(gate):
    lines = [
        *paragraph(
            "The noise, as standard deviations in percent of a step. The last column is the mean",
            "of the process pair that was furthest off.",
        ),
        "",
        "| cell | between processes | between blocks | second block of a pair over the first | furthest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in gate["noise"]:
        lines.append(
            f"| {row['cell']} | {100 * row['process']:.2f} | {100 * row['block']:.2f} "
            f"| {100 * row['second_over_first']:+.2f} | {100 * row['largest_process_pair']:.2f} |"
        )
    return lines


def simulation_lines(gate):
    simulated = gate["simulation"]
    lines = [
        *paragraph(
            f"The whole rule was simulated with {simulated['suites']} suites of",
            f"{simulated['shape']['cells']} cells for each line (`tests/analysis/gate_simulation.h`).",
            "Every cell has the noise of the noisiest one.",
            "Both sides drift, and something else makes one block in a hundred 5 % longer.",
        ),
        "",
        "| between processes | true slowdown | suites with a regression | cells called one | inconclusive |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run in simulated["runs"]:
        for one in run["rates"]:
            lines.append(
                f"| {100 * run['noise']['process']:.2f} % | {100 * (one['slowdown'] - 1):.0f} % "
                f"| {100 * one['suites_with_regression'] / one['suites']:.2f} % "
                f"| {100 * one['regressions'] / one['cells']:.2f} % "
                f"| {100 * one['inconclusive'] / one['cells']:.2f} % |"
            )
    return lines


def with_tables(page, gate):
    before, rest = page.split(BEGIN)
    return before + BEGIN + tables(gate) + END + rest.split(END, 1)[1]
