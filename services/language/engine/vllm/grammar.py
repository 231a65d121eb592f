"""Grammars as vLLM takes them: one text in Lark."""

from __future__ import annotations

import json
import re


def one_text(grammar: str) -> str:
    """A grammar that refers to others by name comes as llguidance's JSON of several; here each stands where its name did, in
    braces of its own. Any other is one text already."""
    if not grammar.startswith("{"):
        return grammar
    first, *others = json.loads(grammar)["grammars"]
    named = {f"@{other['name']}": other["lark_grammar"] for other in others}
    rule = re.compile(rf"^(\w+: )({'|'.join(map(re.escape, named))})$", re.MULTILINE)
    return rule.sub(lambda found: f"{found[1]}%lark {{\n{named[found[2]]}\n}}", first["lark_grammar"])
