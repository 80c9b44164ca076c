"""`interlock show`: the configuration as it will be used."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from interlock.plugins.cli import options


def show(
    config: options.Config = "",
    policy: options.Policy = None,
    sets: options.Set = None,
    seed: options.Seed = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON Schema of configurations instead, with all that is installed.")
    ] = False,
) -> None:
    """Show the resolved configuration, or its JSON Schema."""
    from interlock.core.config import EngineConfig

    if schema and not config:
        typer.echo(json.dumps(EngineConfig.json_schema(), indent=2))
        return
    if not config:
        raise typer.BadParameter("CONFIG is missing: a YAML file, or the name of a packaged one")
    loaded = EngineConfig.load(config, overrides=sets or (), policy=policy, seed=seed)
    if schema:
        typer.echo(json.dumps(EngineConfig.json_schema(), indent=2))
        return
    from interlock.core.yamlfile import dumps

    typer.echo(dumps(loaded.resolved()), nl=False)
