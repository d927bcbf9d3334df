"""The page of the report's JSON, made of its schema."""

import json
from typing import Any

PAGE = "report-json.md"

_HEAD = """# JSON of a report

`nccl-inspector report JOBID --json` prints one object. [The schema](report.schema.json) is JSON
Schema 2020-12. Within version 1 members are added, never taken away. This page is made from the
schema.

"""


def _type(member: dict[str, Any]) -> str:
    if "$ref" in member:
        name = member["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "prefixItems" in member:
        return f"list: {', '.join(_type(one) for one in member['prefixItems'])}"
    if "items" in member:
        return f"list of {_type(member['items'])}"
    for key in ("anyOf", "oneOf"):
        if key in member:
            return " or ".join(_type(one) for one in member[key])
    if "enum" in member:
        return ", ".join(f"`{json.dumps(one)}`" for one in member["enum"])
    if "const" in member:
        return f"`{json.dumps(member['const'])}`"
    kind = member.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _members(schema: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {_type(member)} | {member.get('description', '')} |"
        for name, member in schema.get("properties", {}).items()
    ]
    return "\n".join(["| member | type | |", "|---|---|---|", *rows]) + "\n"


def page_of(schema: dict[str, Any]) -> str:
    """Return the page of the report's members."""
    parts = [_HEAD + "## The report\n", _members(schema)]
    for name, part in schema["$defs"].items():
        parts += [f"## {name}\n", f"{part['description']}\n" if "description" in part else ""]
        parts.append(_members(part))
    return "\n".join(parts)
