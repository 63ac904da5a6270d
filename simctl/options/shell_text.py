"""Servers that a script, a systemd unit or a pasted command starts, as words, with the variables that the text itself sets.

Read line by line: assignments, arrays, `${NAME:-default}`, loops over a list, `sh -c '...'`, `docker run ... IMAGE ...`. Nothing is run,
and the environment of this process is not looked at: an answer hangs on the files given alone. What is not set stays as `${NAME}`.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sim.errors import UsageError
from sim.files import text_of

MOST_BYTES = 1 << 18
MOST_NESTED = 4
SERVERS = {
    "vllm": r"\bvllm\s+serve\b|vllm\.entrypoints|\bdynamo\.vllm\b|\brun\b.*\bvllm/vllm-openai\b",
    "sglang": r"\bsglang\s+serve\b|sglang\.launch_server|\bdynamo\.sglang\b",
    "llamacpp": r"\bllama-server\b|\bllama\.cpp:(server|full)",
    "trtllm": r"\btrtllm-serve\b|\bdynamo\.trtllm\b|tensorrt_llm\.commands\.serve",
    "tgi": r"text-generation-(inference|launcher)",
    "nim": r"\bnvcr\.io/nim/",
    "ollama": r"\bollama/ollama\b|\bollama\s+(serve|run)\b",
    "lmdeploy": r"\blmdeploy\s+serve\b",
}
IMAGES = re.compile(
    r"(^|/)(vllm/vllm-openai(-rocm)?|rocm/vllm|lmsysorg/sglang|llama\.cpp|vllm-runtime|sglang-runtime|llm-d-cuda|text-generation-inference)(:|@|$)"
)
_ASSIGNED = re.compile(r"(?:(?:export|local|readonly|declare(?:\s+-\w+)*)\s+)?([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
_REDIRECTED = re.compile(r"(?<=\s)(?:\d|&)?>{1,2}&?\s*[^\s;|&]+|(?<=\s)<\s*[^\s;|&<]+")
_KEYWORDS = ("then", "do", "else", "{", "!", "exec", "nohup", "time", "sudo", "eval")
_SHOWN, _HIDDEN = "${}", "\1\2\3"  # signs of values, which are not read again
_HIDE, _SHOW = str.maketrans(_SHOWN, _HIDDEN), str.maketrans(_HIDDEN, _SHOWN)
_TESTS = ("[", "[[", "test")
_COMPARED = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le}
COMPUTED = "${A_VALUE_THAT_THE_SCRIPT_COMPUTES}"


@dataclass(slots=True)
class Command:
    """A server's engine and its words from the server's own name on; `copies` of it are started alike, from `image` where one is named."""

    engine: str
    words: list[str]
    copies: int = 1
    image: str = ""
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    variables: dict[str, str]
    branches: list[list[bool | None]] = field(default_factory=list)  # of each `if`: whether a branch was taken, and whether this one is
    last: bool | None = True  # whether the last command succeeded, as far as that is known
    loops: list[int | None] = field(default_factory=list)  # times of each loop around, None where that is not known
    functions: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)


def engine_in(text: str) -> str | None:
    """The engine whose server a command line names."""
    return next((name for name, pattern in SERVERS.items() if re.search(pattern, text)), None)


def environment_of(folder: Path, *names: str) -> dict[str, str]:
    """Variables of `.env` and these files of a folder, as far as they are there."""
    found: dict[str, str] = {}
    for name in (".env", *names):
        file = folder / Path(name).name
        if file.is_file():
            for line in text_of(file, MOST_BYTES, file.name).splitlines():
                if match := re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$", line):
                    value = re.sub(r"\s+#.*$", "", match[2]) if match[2][:1] not in "'\"" else match[2]
                    found[match[1]] = value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
    return found


def expanded_in_shell(line: str, variables: Mapping[str, str], doubtful: Collection[str] = ()) -> str:
    """A line of a shell with its variables put in: nothing within '...', one word within "...", as many as there are spaces elsewhere.

    Of the `doubtful` ones the name stays.
    """

    def array(name: str) -> str:
        return f"${{{name}}}" if name in doubtful else variables.get(name, "").translate(_HIDE)

    line = re.sub(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`", COMPUTED, line)
    line = re.sub(r'"?\$\{(\w+)\[[@*]\]\}"?', lambda match: array(match[1]), line)
    quoted = {name: re.sub(r'([\\"])', r"\\\1", value) for name, value in variables.items()}
    bare = {name: " ".join(map(_quoted, value.split())) for name, value in variables.items()}
    parts = re.split(r"('[^']*'|\"(?:[^\"\\]|\\.)*\")", line)
    return "".join(
        part if part[:1] == "'" else expanded(part, quoted) if part[:1] == '"' else expanded(part, bare) for part in parts
    ).translate(_SHOW)


def _quoted(word: str) -> str:
    return word if "${" in word else shlex.quote(word)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with its variables put in; `$$` is a dollar. A variable that is not set and has no default stays as `${NAME}`."""
    text = text.replace("$$", _HIDDEN[0])
    for _ in range(10):
        before = text
        text = re.sub(r"\$\{(\w+)(?:(:?[-=?+])([^${}]*))?\}", lambda m: _value(m[1], m[2] or "", m[3] or "", variables), text)
        text = re.sub(r"\$(?:\((\w+)\)|([A-Za-z_]\w*|\d(?=\D|$)))", lambda m: _value(m[1] or m[2], "", "", variables), text)
        if text == before:
            break
    return text.translate(_SHOW)


def _value(name: str, how: str, default: str, variables: Mapping[str, str]) -> str:
    given = variables.get(name)
    if how.endswith("+"):
        return default if given else ""
    if given is not None and (given or not how.startswith(":")):
        return given.translate(_HIDE)
    return default if how.endswith(("-", "=")) else f"${{{name}}}"


def unset_in(value: str) -> str | None:
    """The first variable that nothing sets in a value."""
    match = re.search(r"\$\{([^}]*)\}|\$\(\(?([^)]*)\)|(%[a-zA-Z])\b", value)
    return next((each for each in match.groups() if each is not None), "") if match else None


def commands(name: str, text: str, variables: Mapping[str, str], nested: int = 0) -> list[Command]:
    """All servers that a script starts, in its order. UsageError, of the file `name`, where a quotation does not end."""
    state = _State(dict(variables))
    return _commands(name, _without_functions(text, state.functions), state, nested)


def _without_functions(text: str, functions: dict[str, str]) -> str:
    """A script without the bodies of its functions, which are put beside, before them as many empty lines as keep their lines' numbers.

    A function that holds a server and that no other line names stays where it is: what calls it is not seen.
    """

    def taken(match: re.Match[str]) -> str:
        called = re.search(rf"(?<![\w-]){re.escape(match[1])}(?![\w-])", text[match.end() :])
        if not called:
            return match[2]
        functions[match[1]] = "\n" * text[: match.start(2)].count("\n") + match[2]
        return "\n" * match[0].count("\n")

    pattern = r"^(?:function\s+)?([A-Za-z_][\w-]*)\s*(?:\(\))?\s*\{[ \t]*\n(.*?)^\}[ \t]*$"
    return re.sub(pattern, taken, text, flags=re.MULTILINE | re.DOTALL)


def _commands(name: str, text: str, state: _State, nested: int) -> list[Command]:
    found: list[Command] = []
    for number, line in _lines(name, text):
        for default in re.findall(r"\$\{([A-Za-z_]\w*):?=([^${}]*)\}", line):
            state.variables.setdefault(*default)
        for after, segment in _segments(name, number, expanded_in_shell(line, state.variables, state.doubtful)):
            found += _segment(name, number, segment, state, nested, after)
    return found


def _lines(name: str, text: str) -> Iterator[tuple[int, str]]:
    """(number, line) with continued lines, open quotations and arrays joined; comments left out."""
    kept, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not kept and (not line.strip() or line.lstrip().startswith("#")):
            continue
        began = began or number
        if line.rstrip().endswith("\\"):
            kept += line.rstrip()[:-1] + " "
            continue
        kept += line
        if _open(kept):
            kept += "\n"
            continue
        yield began, kept
        kept, began = "", 0
    if kept.strip():
        yield began, kept


def _open(text: str) -> bool:
    """Whether a quotation or an array of an assignment goes on behind this text."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return bool(re.match(r"\s*(?:export\s+|local\s+)?\w+\+?=\(", text)) and not re.search(r"\)\s*(#.*)?$", text)


def _segments(name: str, number: int, line: str) -> Iterator[tuple[str, list[str]]]:
    """What stands before each simple command of a line (`;`, `&&`, `||`, ...), and its words."""
    if match := re.fullmatch(r"\s*(?:export\s+|local\s+)?(\w+)(\+?)=\((.*)\)\s*", line, re.DOTALL):
        yield "", [f"{match[1]}{match[2]}=", *split(name, number, match[3].replace("\n", " "))]
        return
    after = ""
    for sign, word in _split_at_ends(_REDIRECTED.sub(" ", line)):
        after += sign
        if words := split(name, number, word):
            yield after, words
            after = ""


def split(name: str, number: int, text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"{name}: line {number}: its command line: {error}") from None


def _split_at_ends(line: str) -> Iterator[tuple[str, str]]:
    """The parts of a line between `;`, `&`, `|` outside of quotations and `$(...)`, each with the sign before it."""
    part, quote, inside, before, end = "", "", 0, "", ""
    for sign in line:
        if quote:
            quote = "" if sign == quote and before != "\\" else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "()":
            inside += 1 if sign == "(" else -1
        elif sign in ";&|\n" and inside <= 0:
            yield end, part
            part, before, end = "", sign, sign
            continue
        part, before = part + sign, sign
    yield end, part


def _segment(name: str, number: int, words: list[str], state: _State, nested: int, after: str = "") -> list[Command]:
    runs = _branch(words, state)
    denied = False
    while words and words[0] in _KEYWORDS:
        denied ^= words[0] == "!"
        words = words[1:]
    if after in ("&&", "||"):
        runs = _both(runs, state.last if after == "&&" else _negated(state.last))
    if not words or runs is False:
        return []
    state.last = _holds(words) if words[0] in _TESTS else True
    state.last = _negated(state.last) if denied else state.last
    if words[0] == "for":
        state.loops.append(_loop(words, state))
    elif words[0] in ("while", "until"):  # a server within is started again when it ends, or nobody knows how often
        state.loops.append(1 if words[1:] in (["true"], [":"], ["1"]) or engine_in(" ".join(words)) else None)
    elif words[0] == "done" and state.loops:
        state.loops.pop()
    elif match := re.match(r"(\w+\+?=)\((.*)", words[0], re.DOTALL):  # an array behind something else
        _assign([match[1], *f"{match[2]}\n{chr(10).join(words[1:])}".rstrip("\n").removesuffix(")").split("\n")], state, runs)
    elif len(words) == 1 or words[0].endswith("=") or words[0] in ("export", "local", "readonly", "declare"):
        _assign(words, state, runs)
    if words[0] in state.functions and nested < MOST_NESTED:
        given = {str(i): word for i, word in enumerate(words)}
        given |= {"@": shlex.join(words[1:]), "*": " ".join(words[1:]), "#": str(len(words) - 1)}
        state.variables |= given
        return _commands(name, state.functions[words[0]], state, nested + 1)
    line = " ".join(words)
    engine = engine_in(line)
    if engine is None:
        return []
    own = {match[1]: match[2] for word in words if (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word))}
    inner = next((word for word in words if " " in word.strip() and engine_in(word)), None)
    image = next((word for word in words if IMAGES.search(word)), "")
    if inner is not None and nested < MOST_NESTED:
        found = commands(name, inner, state.variables | own, nested + 1)
    else:
        rest = _of_server(words)
        found = [Command(engine, rest, variables=own)] if rest is not None else []
    for each in found:
        each.image = each.image or image
    for each in found:
        for count in state.loops:
            if count is None:
                raise UsageError(f"{name}: line {number}: a loop of unknown length starts servers: list what it runs over")
            each.copies *= count
        _refuse_doubtful(name, number, each.words, state)
    return found


def _branch(words: list[str], state: _State) -> bool | None:
    """Whether this command is in a branch that is taken, None where that is not known; `if`, `else` and their like begin and end them."""
    first = words[0]
    if first == "if":
        taken = _holds(words[1:]) if words[1:2] and words[1] in (*_TESTS, "!") else None
        state.branches.append([taken, taken])
    elif first == "case":
        state.branches.append([None, None])
    elif first == "elif" and state.branches:
        before, taken = state.branches[-1][0], _holds(words[1:])
        state.branches[-1] = [_negated(_both(_negated(before), _negated(taken))), _both(_negated(before), taken)]
    elif first == "else" and state.branches:
        state.branches[-1][1] = _negated(state.branches[-1][0])
    elif first in ("fi", "esac") and state.branches:
        state.branches.pop()
    runs: bool | None = True
    for _, taken in state.branches:
        runs = _both(runs, taken)
    return runs


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else None if one is None or other is None else True


def _holds(words: list[str]) -> bool | None:
    """Whether a test holds, None where a variable in it, or how it compares, is not known."""
    if words[:1] == ["!"]:
        return _negated(_holds(words[1:]))
    tested = [word for word in words[1:] if word not in ("]", "]]")]
    if words[:1] and words[0] in _TESTS and not any(unset_in(word) for word in tested):
        if len(tested) == 2 and tested[0] in ("-n", "-z"):
            return bool(tested[1]) == (tested[0] == "-n")
        if len(tested) == 3 and tested[1] in ("=", "==", "!="):
            return (tested[0] == tested[2]) == (tested[1] != "!=") if not re.search(r"[*?[]", tested[2]) else None
        if len(tested) == 3 and tested[1] in _COMPARED and all(re.fullmatch(r"-?\d+", tested[i]) for i in (0, 2)):
            return bool(_COMPARED[tested[1]](int(tested[0]), int(tested[2])))
    return None


def _refuse_doubtful(name: str, number: int, words: list[str], state: _State) -> None:
    for word in words:
        if (unset := unset_in(word)) in state.doubtful:
            raise UsageError(f"{name}: line {number}: {unset} hangs on a condition of the script; set it in a .env beside it")


def _loop(words: list[str], state: _State) -> int | None:
    """Times that `for NAME in ...` runs, its variable set to the first; None where that is not known."""
    items: list[str] = []
    if any(unset_in(word) for word in words):
        return None
    for word in words[3:] if words[2:3] == ["in"] else []:
        if match := re.fullmatch(r"\{(\d+)\.\.(\d+)\}", word):
            items += [str(i) for i in range(int(match[1]), int(match[2]) + 1)][:1024]
        else:
            items.append(word)
    known = [word for word in items if not unset_in(word)]
    if known:
        state.variables[words[1]] = known[0]
    return len(items) if items and len(known) == len(items) else None


def _assign(words: list[str], state: _State, runs: bool | None) -> None:
    """Take an assignment; where its condition is not known, only if nothing was set before."""
    for word in words if not words[0].endswith("=") else words[:1]:
        match = _ASSIGNED.fullmatch(word)
        if match is None:
            continue
        variable, how, value = match.groups()
        if words[0].endswith("="):  # an array
            value = shlex.join(words[1:])
        known = state.variables.get(variable)
        if how == "+=" and known is not None:
            value = f"{known} {value}" if words[0].endswith("=") else known + value
        if runs is None and known is not None and known != value:
            state.doubtful.add(variable)
            state.variables.pop(variable)
        elif variable not in state.doubtful:
            state.variables[variable] = value


def _of_server(words: list[str]) -> list[str] | None:
    """Words behind what names the server: `vllm serve`, `-m MODULE`, `llama-server`, or an image; None where none is started."""
    for i, word in enumerate(words):
        base, after = word.rpartition("/")[2], words[i + 1 : i + 2]
        if base in ("vllm", "sglang") and after == ["serve"]:
            return words[i + 1 :]
        if word == "-m" and after and re.match(r"vllm\.entrypoints|sglang\.launch_server|dynamo\.|tensorrt_llm\.", after[0]):
            return words[i + 2 :]
        if base in ("llama-server", "trtllm-serve", "text-generation-launcher"):
            return words[i + 1 :]
        if base.endswith("api_server.py") or re.match(r"vllm\.entrypoints", word):
            return words[i + 1 :]
    image = next((i for i, word in enumerate(words) if IMAGES.search(word)), -1)
    if image >= 0:
        rest = words[image + 1 :]
        return rest[1:] if rest[:1] == ["--"] else rest
    return None
