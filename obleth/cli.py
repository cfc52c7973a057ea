"""The `obleth` command. What goes wrong is said in one line, without a traceback.

Exit codes: 2 for what the caller can set right (options, settings), 1 for what failed; `replay`
also has 3 for a gateway that does not answer and 4 for a key that it refuses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from obleth import __version__
from obleth.failures import Failed
from obleth.replay.options import Assignment

app = typer.Typer(
    help="Fair admission for shared LLM backends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Workers = Annotated[
    int, typer.Option(min=1, max=256, help="Processes; more than one needs OBLETH_REDIS_URL.")
]


def main() -> None:
    """The console script."""
    try:
        app()
    except Failed as failure:
        print(f"obleth: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"obleth {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    pass


# Each command imports what it needs when it is called, so that `obleth --help` answers at once.


@app.command()
def serve(
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="1: several are what `obleth dataplane` starts.")
    ] = 1,
) -> None:
    """Serve both planes in one process, on SQLite, without Redis."""
    from obleth import embedded

    embedded.run_embedded(workers)


@app.command()
def controlplane() -> None:
    """Serve the Management API and the dashboard."""
    from obleth import embedded

    embedded.run_control_plane()


@app.command()
def dataplane(
    workers: Workers = 1,
    worker: Annotated[int | None, typer.Option(hidden=True)] = None,
    descriptor: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve the data plane: what clients call."""
    from obleth import embedded
    from obleth.workers import Place

    if worker is None or descriptor is None:
        embedded.run_data_plane(workers)
    else:
        embedded.run_data_plane(workers, Place.inherited(worker, workers, descriptor))


@app.command()
def migrate() -> None:
    """Bring the database's schema up to this version."""
    from obleth import embedded

    embedded.run_migrations()


@app.command()
def demo(
    traffic: Annotated[bool, typer.Option(help="Keep both tenants' queues filled, gently.")] = True,
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the database in this folder; otherwise nothing is kept."),
    ] = None,
) -> None:
    """Try it: simulated backend, tenants, keys, live traffic."""
    print("starting ...", flush=True)
    from obleth.demo import run_demo

    run_demo(traffic=traffic, data=data)


@app.command()
def backend(
    listen: Annotated[str, typer.Option(help="host:port to listen on.")] = "127.0.0.1:9000",
    model: Annotated[
        list[str] | None, typer.Option(help="A model it lists; may be repeated.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests of a model that run at once.")
    ] = None,
    token_ms: Annotated[float, typer.Option(min=0, help="Time of one output token.")] = 20,
    prefill_ms_per_token: Annotated[
        float, typer.Option(min=0, help="Time of one prompt token that is not cached.")
    ] = 0.2,
    cache_tokens: Annotated[int, typer.Option(min=0, help="Prefix cache of each model.")] = 100_000,
    reply_tokens: Annotated[
        int, typer.Option(min=0, help="Length of a reply to a request that sets no limit.")
    ] = 64,
) -> None:
    """Run the simulated OpenAI and Anthropic backend."""
    from obleth import backend as simulated
    from shared.settings import ListenAddress

    try:
        address = ListenAddress.parse(listen)
        options = simulated.BackendOptions(
            host=address.host,
            port=address.port,
            models=tuple(model or ("sim-model",)),
            slots=slots,
            token_secs=token_ms / 1000,
            prefill_secs_per_token=prefill_ms_per_token / 1000,
            cache_tokens=cache_tokens,
            reply_tokens=reply_tokens,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        simulated.run(options, lambda running: print(f"listening on {running.url}", flush=True))
    except simulated.CannotListen as error:
        raise Failed(str(error)) from None


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="A trace: CSV or JSONL.", dir_okay=False)],
    tenant: Annotated[
        list[str], typer.Option(help="A sender, as name=key or name:weight=key; repeat for more.")
    ],
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8080/v1",
    model: Annotated[
        str | None, typer.Option(help="Needed where the keys may use several.")
    ] = None,
    assign: Annotated[
        Assignment | None, typer.Option(help="Which tenant sends what the trace has no tenant for.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    speed: Annotated[float, typer.Option(help="How much faster than recorded.")] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Rows of the trace that are used.")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Sessions that are used.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Steps of each session.")] = None,
    closed_loop: Annotated[
        int | None, typer.Option(help="Sessions each tenant keeps going, whatever was recorded.")
    ] = None,
    duration_secs: Annotated[
        float | None, typer.Option(help="Begin nothing more after so many seconds.")
    ] = None,
    token_scale: Annotated[float, typer.Option(help="Factor on prompt and reply lengths.")] = 1.0,
    output_scale: Annotated[
        float | None, typer.Option(help="Factor on reply lengths alone.")
    ] = None,
    start_spread_secs: Annotated[
        float | None, typer.Option(help="Trace time over which sessions begin.")
    ] = None,
    max_outstanding: Annotated[int, typer.Option(help="Requests under way at once.")] = 1000,
    timeout_secs: Annotated[float, typer.Option(help="Longest silence of a response.")] = 600,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, without a progress bar.")
    ] = False,
) -> None:
    """Replay a trace through a gateway and show who got what."""
    import json

    from rich.console import Console

    from obleth import replay as playing

    try:
        options = playing.ReplayOptions(
            trace=trace,
            url=url,
            tenants=tuple(playing.TenantKey.parse(one) for one in tenant),
            model=model,
            assign=assign,
            seed=seed,
            speed=speed,
            limit=limit,
            max_sessions=max_sessions,
            max_steps=max_steps,
            closed_loop=closed_loop,
            duration_secs=duration_secs,
            token_scale=token_scale,
            output_scale=output_scale,
            start_spread_secs=start_spread_secs,
            max_outstanding=max_outstanding,
            timeout_secs=timeout_secs,
        )
        report = playing.run(options, None if as_json else Console(stderr=True))
    except playing.ReplayError as error:
        raise Failed(str(error), error.exit_code) from None
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        Console().print(playing.render(report))
    raise typer.Exit(report.exit_code)


Api = Annotated[
    str | None,
    typer.Option(
        help="The control plane's address; left out, OBLETH_ADMIN_LISTEN of this machine."
    ),
]


@app.command()
def top(
    url: Api = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
) -> None:
    """Show who runs and who waits, and why, until Ctrl-C; as plain text where it is no terminal.

    The token is OBLETH_VIEWER_TOKEN or OBLETH_ADMIN_TOKEN.
    """
    from obleth import console

    console.top(url, interval, once=once)


@app.command()
def explain(
    key: Annotated[str, typer.Option(help="A key's id, its secret, or how that begins.")],
    model: Annotated[str, typer.Option(help="A model's name or an alias.")],
    url: Api = None,
) -> None:
    """Say why a request of a key to a model would wait now, or be refused.

    The token is OBLETH_VIEWER_TOKEN or OBLETH_ADMIN_TOKEN. Of a secret only the beginning is sent.
    """
    from obleth import console

    console.explain(url, key, model)
