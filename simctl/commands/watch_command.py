"""`simctl watch`: a running server beside its twin, and when its SLO will break."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hw.command import headers_of
from hw.serve.http_stream import shown, split_url
from sim.errors import UsageError
from sim.files import writable
from sim.slo import Condition, parse_slo
from simctl.from_options.deployments import deployment_of
from simctl.from_options.questions import host_of
from simctl.options.option_groups import Sectioned
from simctl.options.shared_options import deployment_options, host_option, limit_options, rate_options
from simctl.report.serve import LOOPBACK
from simctl.watch.follow import follow
from simctl.watch.kept import Kept
from simctl.watch.live import History, serve_history
from simctl.watch.targets import urls_of

if TYPE_CHECKING:
    from ssl import SSLContext

    from sim import Deployment
    from sim.twin.curve import LatencyCurve


SHORTEST_TOKEN = 16  # characters


@click.command("watch", cls=Sectioned, sections={})
@click.argument("urls", nargs=-1, metavar="URL...")
@deployment_options
@limit_options
@click.option(
    "--targets",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Prometheus file of targets, instead of URLs; read again at every scrape.",
)
@click.option(
    "--plan", "plan_file", type=click.Path(exists=True, path_type=Path), help="Take deployment and SLO from this file of plan -o."
)
@click.option("--slo", "slos", multiple=True, help='Conditions to hold, as "ttft:p95<2s tpot:p95<50ms". Without them there is no forecast.')
@click.option("--every", type=click.FloatRange(1, 3600), default=15.0, show_default=True, help="Seconds between scrapes.")
@click.option("--horizon", type=click.FloatRange(1, 1440), default=20.0, show_default=True, help="Minutes to look ahead.")
@click.option(
    "--for", "duration", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Stop after this time. [default: at Ctrl-C]"
)
@click.option("--random-length-cv", type=click.FloatRange(0, 10), default=0.0, show_default=True, help="Log-normal lengths with this CV.")
@click.option("--port", type=click.IntRange(0, 65535), help="Serve a live page, /status.json, /metrics and /healthz on this port.")
@click.option("--bind", metavar="ADDRESS", help="With --port: listen on this address, not only on the loopback; needs --token-env.")
@click.option(
    "--token-env", metavar="NAME", help="With --port: environment variable with the token to ask for, as Bearer or Basic password."
)
@click.option("--tls", nargs=2, metavar="CERT KEY", help="With --port: serve https with these PEM files.")
@click.option("--trace", metavar="FILE", help="Also write the load as a trace (JSON lines) that simulate and plan read.")
@click.option("--keep", metavar="FILE", help="Save what is learnt of the servers in this file, and start from it.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the servers' key, sent as Bearer and stored nowhere.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Header for the servers; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per window.")
@rate_options
@host_option
def command(urls: tuple[str, ...], slos: tuple[str, ...], **options: Any) -> None:
    """Watch running servers: predicted latency beside seen, and when the SLO breaks.

    Each URL is a vLLM or SGLang server of the same deployment; its /metrics are read, nothing is sent to its model.
    How much slower a server is than its simulation is learnt window by window, with a 90 % interval.

    \b
    Example:
      simctl watch http://localhost:8000 --gpu H100 --model Llama-3.1-8B \\
        --slo 'ttft:p95<1s tpot:p95<50ms' --port 8100
    """
    from sim.twin.twin import Twin

    if bool(urls) == (options["targets"] is not None):
        raise UsageError("which servers? give their URLs, or --targets FILE")

    def found() -> list[tuple[str, dict[str, str]]]:
        return [_checked(url, options["api_key_env"], options["headers"]) for url in urls or urls_of(options["targets"])]

    servers = found()
    if len(set(urls)) < len(urls):
        raise UsageError("a URL is given twice")
    if options["gpu"] is None and options["plan_file"] is None:
        raise UsageError("what serves there? give --gpu NAME, or --plan FILE")
    deployment, slos, options = _planned(options, slos, len(servers)) if options["plan_file"] else (deployment_of(options), slos, options)
    twin = Twin([url for url, _ in servers], _curve_for(deployment, options), _conditions(slos), options["horizon"] * 60.0)
    trace, history, page = writable(options["trace"]), History(" ".join(slos)), None
    kept = Kept(writable(options["keep"]), deployment)
    if known := kept.take_up(twin):
        click.echo(known, err=True)
    bind, token, tls = _page_settings(options)
    if options["port"] is not None:
        page = serve_history(history, options["port"], options["every"], bind, token, tls)
        click.echo(f"http{'s' if tls else ''}://{f'[{bind}]' if ':' in bind else bind}:{page.server_address[1]}/", err=True)
    try:
        follow(twin, servers, options, trace, history, kept, found if options["targets"] else None)
    except KeyboardInterrupt:
        click.echo("ended", err=True)
    finally:
        if page:
            page.shutdown()


next(option for option in command.params if option.name == "gpu").required = False  # --plan says it, too


def _page_settings(options: dict[str, Any]) -> tuple[str, str, SSLContext | None]:
    """(address, token, TLS) of the page. Raises UsageError."""
    named = [f"--{name.replace('_', '-')}" for name in ("bind", "token_env", "tls") if options[name]]
    if named and options["port"] is None:
        raise UsageError(f"{named[0]} is of the page, which needs --port")
    token = os.environ.get(options["token_env"], "") if options["token_env"] else ""
    if options["token_env"] and len(token) < SHORTEST_TOKEN:
        raise UsageError(f"--token-env: {options['token_env']} holds no token of {SHORTEST_TOKEN} characters or more")
    bind = options["bind"] or LOOPBACK
    if bind not in (LOOPBACK, "::1") and not token:
        raise UsageError(f"--bind {bind}: others may then read the page; give --token-env")
    if not options["tls"]:
        return bind, token, None
    from ssl import PROTOCOL_TLS_SERVER, SSLContext

    context = SSLContext(PROTOCOL_TLS_SERVER)
    try:
        certificate, key = options["tls"]
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:
        raise UsageError(f"--tls {' '.join(options['tls'])}: {error.strerror or error}") from None
    return bind, token, context


def _planned(options: dict[str, Any], slos: tuple[str, ...], servers: int) -> tuple[Deployment, tuple[str, ...], dict[str, Any]]:
    """(deployment, SLO, options) of a plan file, an SLO of the command line before its own. UsageError for what is given twice, or no plan
    of equal replicas.
    """
    from simctl.scenario_files.plan_files import known_of, options_of_plan, plan_in
    from simctl.text.layout import fill

    plan = plan_in(options["plan_file"])
    if plan is None:
        raise UsageError(f"{options['plan_file']}: no plan file; `simctl plan ... -o FILE` writes one")
    if options["gpu"] is not None:
        raise UsageError("--plan says what is served: leave out --gpu and what goes with it")
    asked = options_of_plan(plan)
    found = known_of(plan, asked)
    if found.best is None:
        raise UsageError(f"{plan.name}: names no count to watch; go on with it: simctl plan {plan.name} --more-time")
    study = found.choices[found.best.choice].study_of(found.best.replicas)
    if study.fleet is not None:
        raise UsageError(f"{plan.name}: pools of two kinds; watch follows servers of one deployment")
    if not slos:
        slos = tuple(condition.text for condition in found.conditions if condition.figure not in ("failed", "good"))
    said = f"{plan.name}: {found.best.replicas} replicas planned, {servers} watched. {plan.found['answer']['conclusion']}"
    click.echo(fill(said), err=True)
    taken = ("posterior", "host", "seed")
    cv = options["random_length_cv"] or asked["random_length_cv"] or 0.0
    return study.deployment, slos, options | {name: asked[name] for name in taken} | {"random_length_cv": cv}


def _curve_for(deployment: Deployment, options: dict[str, Any]) -> Callable[[float, float, float], LatencyCurve]:
    """Simulates a replica for lengths; its rates are loaded when they are first needed."""
    on = host_of(options)

    def curve_for(prompt: float, output: float, cached_share: float) -> LatencyCurve:
        from sim import RateSource
        from sim.twin.curve import latency_curve

        rates, host = RateSource(options["posterior"], host_scale=on, seed=options["seed"]).of(deployment, draws=1000)
        return latency_curve(deployment, rates, host, prompt, output, options["random_length_cv"], cached_share)

    return curve_for


def _conditions(slos: tuple[str, ...]) -> tuple[Condition, ...]:
    found = parse_slo(slos, {}) if slos else ()
    for condition in found:
        if condition.figure in ("failed", "good"):
            raise UsageError(f"{condition.text}: servers' metrics do not say this; give latencies, as ttft:p95<2s")
    return found


def _checked(url: str, key_env: str | None, headers: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    try:
        split_url(url)
    except ValueError as error:
        raise UsageError(f"{shown(url)}: {error}") from None
    return url.rstrip("/").removesuffix("/v1"), headers_of(url, headers, key_env)
