"""The site: its navigation has every page, its CLI reference every option; it builds without a broken link and needs no network."""

import importlib
import os
import re
import subprocess
import sys

import click
import pytest
import yaml

from simctl.cli import COMMANDS
from tests.browser import browser, installed
from tests.docs.pages import ROOT, script

made = script("site_pages")
# Whether the search lists a page within ten seconds.
FOUND = """new Promise(done => {
    const until = Date.now() + 10000
    const found = () => document.querySelector('.md-search-result__item') !== null
    const look = () => found() || Date.now() > until ? done(found()) : setTimeout(look, 50)
    look()
})"""


def listed(entries):
    """Addresses in a navigation."""
    for entry in entries:
        each = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from listed(each) if isinstance(each, list) else [each]


def configuration():
    class Loader(yaml.SafeLoader):
        """Leaves what MkDocs makes of names in Python."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, name, node: None)
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def test_the_navigation_lists_every_page():
    nav = list(listed(configuration()["nav"]))
    assert len(nav) == len(set(nav))
    assert set(nav) == {uri for uri in made.pages() if uri.endswith(".md")}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_option(name):
    parts = re.split(r"^## ", made.cli_reference(), flags=re.MULTILINE)
    (text,) = [part for part in parts if part.startswith(f"simctl {name}\n")]
    command = importlib.import_module(COMMANDS[name][0]).command
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            (entry,) = re.findall(rf"^`[^`]*(?<![\w-]){parameter.opts[-1]}(?![\w-])[^`]*`\n:   (.*)", text, re.MULTILINE)
            assert len(entry) > 5
        else:
            assert parameter.make_metavar(click.Context(command)) in text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    made.write(folder / "pages")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(text.replace("out/", f"{folder}/").replace("[.]", f"[{ROOT}]"))
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(folder / "mkdocs.yml")]
    done = subprocess.run(call, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_builds_and_needs_no_network(site):
    pages = {uri.removesuffix(".md").removesuffix("README") for uri in made.pages() if uri.endswith(".md")}
    assert all((site / f"{page}{'index' if page.endswith('/') else ''}.html").exists() for page in pages)
    from_elsewhere = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//[^\"' >]*")
    assert [found for page in site.rglob("*.html") for found in from_elsewhere.findall(page.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
@pytest.mark.skipif(installed() is None, reason="no Chromium")
def test_no_page_is_wider_than_a_phone_and_the_search_answers(site, tmp_path):
    with browser(tmp_path) as page:
        for path in {*site.rglob("*.html")} - {site / "404.html"}:  # that one is for a server
            page.open(path, 360)
            assert page.value("document.documentElement.scrollWidth - innerWidth") <= 0, path
        page.open(site / "index.html", 1280)
        page.value("document.querySelector('[data-md-component=search-query]').focus()")
        page.send("Input.insertText", text="wave quantisatio")
        page.key("n", 78, "n")
        assert page.value(FOUND)
        assert page.said == []
