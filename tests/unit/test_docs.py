"""The documents say what the code does: settings, failure codes, and modules are compared with it."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from transformers import AutoConfig

from benchmarks.pages import write_section
from services.encoder.faults.kinds import KINDS
from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings
from services.loadtest.scenario import shipped
from services.loadtest.verdicts import judge
from shared.errors import ERRORS
from shared.families import FAMILIES, Family
from shared.halves import whole_class
from shared.settings import ServiceSettings
from tests.declared import metrics
from tests.families import ALSO_CALLED, BUILDERS
from tests.processes import ROOT
from tests.unit.loadtest.runs import crash_run

SETTINGS = ROOT / "docs" / "settings.md"
LOAD_TESTING = ROOT / "docs" / "load-testing.md"
OBSERVABILITY = ROOT / "docs" / "observability.md"


def rendered() -> str:
    """The page of all settings. ``UPDATE_DOCS=1 make test`` writes it."""
    lines = ["# Settings", "", "Each is an environment variable and a command-line flag. This page is generated from the code."]
    for title, cls, base in (
        ("Both services", ServiceSettings, None),
        ("Encoder service", EncoderSettings, ServiceSettings),
        ("Language service", LanguageSettings, ServiceSettings),
    ):
        lines += ["", f"## {title}", "", "| variable | flag | default | meaning |", "|---|---|---|---|"]
        for name, field in cls.model_fields.items():
            if base is not None and name in base.model_fields:
                continue
            value = field.get_default(call_default_factory=True)
            assert value is not PydanticUndefined
            default = "" if value is None else f"`{value}`"
            lines.append(f"| `EPD_{name.upper()}` | `--{name.replace('_', '-')}` | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def test_every_setting_is_documented() -> None:
    if os.environ.get("UPDATE_DOCS"):
        SETTINGS.write_text(rendered())
    assert SETTINGS.read_text() == rendered()


def metric_tables() -> str:
    """The tables of all metrics."""
    lines = []
    for title, folder in (
        ("Both services", "shared"),
        ("Encoder service", "services/encoder"),
        ("Language service", "services/language"),
    ):
        lines += ["", f"### {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in metrics(folder):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |")
    return "\n".join([*lines, "", ""])


def test_every_metric_is_documented() -> None:
    before, marker, rest = OBSERVABILITY.read_text().partition("<!-- metrics -->\n")
    tables, end, after = rest.partition("<!-- end -->\n")
    if os.environ.get("UPDATE_DOCS"):
        OBSERVABILITY.write_text(before + marker + metric_tables() + end + after)
    else:
        assert tables == metric_tables()


def verdict_table() -> str:
    """Every promise that the load tester judges."""
    run = crash_run()
    everything = run.scenario.verdicts.model_copy(update={"p99": 1.0, "fault_success": 0.5})
    judged = judge(replace(run, scenario=run.scenario.model_copy(update={"verdicts": everything})))
    return "\n".join(["| verdict | promise |", "|---|---|", *(f"| `{each.name}` | {each.promise} |" for each in judged), ""])


def test_every_verdict_is_documented() -> None:
    if os.environ.get("UPDATE_DOCS"):
        write_section(LOAD_TESTING, "verdicts", verdict_table().splitlines())
    assert verdict_table() in LOAD_TESTING.read_text()


MODELS = ROOT / "docs" / "models.md"


def family_table() -> list[str]:
    """Every family that is served, as the registry, transformers, and the list of tiny checkpoints know it."""
    lines = [
        "| family | `model_type` | takes | encoder half | language half | positions | extras | tested |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        halves = [path.partition(":")[0].rpartition(".")[2] for path in (family.encoder, family.language)]
        takes = [{"image": "pictures", "video": "videos", "audio": "sounds"}[each] for each in family.modalities]
        media = [{"video": "video", "audio": "audio"}.get(each) for each in family.modalities]
        extras = dict.fromkeys(f"`{extra}`" for extra in (*family.extras, *media) if extra is not None)
        tested = [name for name in BUILDERS if ALSO_CALLED.get(name, name) == family.model_type]
        assert tested, f"{family.model_type} has no tiny checkpoint"
        lines.append(
            f"| {family.title} | `{family.model_type}` | {', '.join(takes)} | `{halves[0]}` | `{halves[1]}` | "
            f"{'M-RoPE' if has_rope_index(family) else 'plain'} | {', '.join(extras)} | {', '.join(tested)} |"
        )
    return lines


def has_rope_index(family: Family) -> bool:
    """Whether transformers computes positions of the family's prompts from grids."""
    if family.configuration is not None:
        return False
    whole = whole_class(AutoConfig.for_model(family.model_type))
    return any(
        hasattr(each, "get_rope_index") for each in vars(sys.modules[whole.__module__]).values() if isinstance(each, type)
    )


def test_every_family_is_documented() -> None:
    if os.environ.get("UPDATE_DOCS"):
        write_section(MODELS, "families", family_table())
    assert "\n".join(family_table()) in MODELS.read_text()


def test_every_scenario_is_documented() -> None:
    table = LOAD_TESTING.read_text().split("| scenario |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == [*sorted(shipped(), key=table.index)]


def test_the_readmes_failure_table_is_the_codes() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {code: int(status) for code, status in table.items()} == {code: cls.status for code, cls in ERRORS.items()}


def test_the_failure_contract_names_every_code_and_every_fault() -> None:
    page = (ROOT / "docs" / "failure-contract.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", page, re.MULTILINE))
    assert {code: int(status) for code, status in table.items()} == {code: cls.status for code, cls in ERRORS.items()}
    faults = page.split("## Faults on order")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", faults, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == {kind.model_fields["kind"].default for kind in KINDS}


def test_no_figure_is_left_out() -> None:
    assert not re.search(r"@[A-Z]+@", (ROOT / "README.md").read_text())


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/architecture.md",
        "docs/observability.md",
        "docs/load-testing.md",
        "docs/failure-contract.md",
        "docs/security.md",
        "docs/models.md",
        "docs/media.md",
        "docs/console.md",
        "docs/tools.md",
        "docs/api.md",
        "docs/engines.md",
        "docs/fleet.md",
        "docs/fleet-results.md",
        "docs/fleet-size.md",
        "docs/kubernetes.md",
        "docs/scaling.md",
        "CONTRIBUTING.md",
    ],
)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    folders = [
        Path(),
        Path("docs"),
        Path("services/language"),
        Path("services/encoder"),
        Path("services/language/engine/torch"),
        Path("services/language/engine/vllm"),
        Path("services/language/embeddings"),
        Path("services/fleet"),
        Path("services/loadtest/capacity"),
        Path("tests/manifests"),
        Path("services/loadtest"),
    ]
    named = set(re.findall(r"`([\w/.-]+\.(?:py|md|yml|toml|png|conf))`|\]\(([\w/.-]+)\)", text))
    for name in {first or second for first, second in named}:
        assert any((ROOT / folder / name).exists() for folder in folders), f"{page} names {name}, which is not there"
