"""`python docs/inventory.py DIR`: a row per measurement file under DIR, as it says of itself; `--write` puts them into DIR/README.md."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from sim.errors import UsageError

BEGIN, END = "<!-- begin inventory -->", "<!-- end inventory -->"
HEAD = "| file | device | when (UTC) | software | how | holds | complete |\n|---|---|---|---|---|---|---|"


def table(folder: Path) -> str:
    """The rows of every netCDF file under `folder`, as Markdown, by path."""
    paths = sorted(folder.rglob("*.nc"))
    return "\n".join([HEAD, *(f"| {path.relative_to(folder).with_suffix('')} | {' | '.join(_row(path))} |" for path in paths)])


def _sizes(path: Path) -> dict[str, int]:
    """Dimensions of a netCDF file, less those that are the widths of texts; no value is read."""
    import h5py

    with h5py.File(path, "r") as file:
        return {n: file[n].shape[0] for n in file if h5py.h5ds.is_scale(file[n].id) and not re.fullmatch(r"string\d+", n)}


def _row(path: Path) -> list[str]:
    from calibrate.measurement import open_measurement

    said = open_measurement(path, ()).attrs
    tell = lambda *names: next((str(said[n]) for n in names if n in said and str(said[n])), "")  # noqa: E731
    engine = tell("engine", "plan_engine")
    version = tell("engine_version", "plan_engine_version")
    version = version or (tell("vllm_version") if engine == "vllm" else "")
    with_it = [f"{engine} {version}".strip(), f"torch {tell('torch_version', 'torch')}", f"driver {tell('driver')}"]
    software = ", ".join(x for x in with_it if x and not x.endswith(" "))
    how = [tell("protocol", "suite"), tell("path", "plan_path"), tell("weight_dtype")]
    how += ["no torch.compile"] if tell("fast_start") == "1" else []
    how += [f"{tell('tensor_parallel_size')} GPUs"] if tell("tensor_parallel_size") not in ("", "1") else []
    sizes = ", ".join(f"{size} {name}s" for name, size in _sizes(path).items() if name not in ("iteration", "token"))
    complete = {"1": "yes", "0": "no", "": "-"}[tell("finished")]
    when = tell("date_utc", "date")[:16].replace("T", " ")
    return [tell("gpu_name", "gpu"), when, software, ", ".join(filter(None, how)), sizes, complete]


def put(readme: Path, rows: str) -> str:
    """The text of `readme` with the table between its marks. Raises UsageError when the marks are not there."""
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UsageError(f"{readme}: wants one {BEGIN} and one {END}")
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n{rows}\n{text[text.index(END) :]}"


@click.command("inventory", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Put the table between the marks in FOLDER/README.md.")
def main(folder: Path, write: bool) -> None:
    """List the measurement files under FOLDER: what, where, when, with which software."""
    rows = table(folder)
    click.echo(rows)
    if write:
        readme = folder / "README.md"
        temporary = readme.with_suffix(".tmp")
        temporary.write_text(put(readme, rows), encoding="utf-8")
        os.replace(temporary, readme)


if __name__ == "__main__":
    main()
