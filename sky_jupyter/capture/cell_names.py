"""Names that a cell reads and writes, and how sure that is.

A name counts as read if it *could* be read before the cell has certainly written it: a name too few would be missing on
the nodes, while a name too many only costs a transfer.
Statements are followed in order through branches and loops. The code of a function counts where the function's name is
used, or else at the end of the cell.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..node.serialization.global_names import code_reads
from .names_in_code import (
    PANDAS,
    annotation_names,
    at_names,
    code_attributes,
    code_guesses,
    code_writes,
    expansions,
    fields,
    plain,
    words,
)

_INTERNAL = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_[ido]h|_exit_code|_sky_copied|get_ipython")
# Names of IPython that the user may have for something else, and those of its lists under other names.
_MAYBE_INTERNAL, _HISTORIES = {"display", "exit", "open", "quit"}, {"In": "_ih", "Out": "_oh"}
_MODULES_OWN = {"name", "doc", "file", "spec", "loader", "package", "builtins", "builtin", "annotations", "session"}
_MODULES_OWN |= {"cached", "dict", "annotate", "conditional_annotations", "path", "class", "main"}
_OPTIONS = re.compile(r"(\s*-{1,2}\w+(\s+\d+)?(?=\s|$))*")
_LINE_CODE = {"time", "timeit", "prun", "memit", "mprun", "lprun"}
_CELL_NOT_CODE = {"!", "bash", "cmd", "file", "html", "javascript", "js", "latex", "markdown", "perl", "ruby"}
_CELL_NOT_CODE |= {"script", "sh", "svg", "sx", "system", "writefile"}
_LINE_NAMES = {"pinfo", "pinfo2", "pdef", "pdoc", "psource", "pfile", "page", "edit", "store"}
_SHELL = {"!", "sx", "system", "getoutput", "getoutput_pexpect", "system_piped", "system_raw"}
_OUTPUTS = re.compile(r"--(?:out|err|proc)[\s=]+([A-Za-z_]\w*)")
_SHOWING = {"print", "display", "input", "help", "breakpoint", "get_ipython"}
_NAMESPACES = {"globals", "locals", "vars", "dir"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)


def is_internal(name: str, namespace: Mapping[str, Any]) -> bool:
    """Return True for a name of IPython or Python itself, which is never sent.

    Some names may be the user's: their values in the namespace tell.
    """
    if name in _HISTORIES:
        return namespace.get(name) is namespace.get(_HISTORIES[name])
    if name in _MAYBE_INTERNAL:
        module = str(getattr(namespace.get(name), "__module__", ""))
        return module.partition(".")[0] in ("IPython", "ipykernel")
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2] in _MODULES_OWN or len(name) < 5
    return _INTERNAL.fullmatch(name) is not None


@dataclass(frozen=True)
class CellNames:
    """Result of `analyse`.

    Parameters
    ----------
    reads : frozenset of str
        Names that the cell may read from the namespace before it has certainly written them.
    writes : frozenset of str
        Names that it may bind or delete in the namespace.
    shell : frozenset of str
        Those of `reads` in shell lines and magics.
    weak : frozenset of str
        Those of `reads` that are guesses, or that the cell has most likely written itself before. They are sent if
        possible; if not, the cell runs without them.
    sure : frozenset of str
        Those of `writes` that are certainly written if the cell ends without an error.
    dropped : frozenset of str
        Those of `writes` that the cell finally deletes, as far as its source shows.
    uses : mapping of str to frozenset of str
        Names read by the code of each function and class that the cell defines.
    attributes : frozenset of str
        Attribute names in the code, for finding submodules.
    shows : bool
        Whether the cell most likely prints, shows or asks something: it ends with an expression, or names a function
        that does so.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    shell: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    uses: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    attributes: frozenset[str] = frozenset()
    shows: bool = True


def analyse(source: str) -> CellNames:
    """Return the names that a cell reads and writes.

    ``source`` is Python, the output of IPython's ``transform_cell``. Raise SyntaxError if it is invalid.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are shown where the cell runs.
        tree = ast.parse(source)
        _compiled(tree)  # Some syntax errors are found only here.
        flow = NameFlow()
        flow.follow_cell(tree)
    reads = frozenset(flow.reads)
    return CellNames(
        reads=reads,
        writes=frozenset(flow.writes),
        shell=frozenset(name for name in flow.shell & reads if not is_internal(name, {})),
        weak=reads - flow.strong,
        sure=frozenset(flow.sure & flow.writes),
        dropped=frozenset(flow.dropped),
        uses={name: frozenset(uses) for name, uses in flow.uses.items()},
        attributes=frozenset(flow.attributes),
        shows=not _SHOWING.isdisjoint(reads) or (bool(tree.body) and isinstance(tree.body[-1], ast.Expr)),
    )


def _compiled(tree: ast.Module) -> types.CodeType:
    """Compile a cell, which may use await at top level; raise SyntaxError."""
    code: types.CodeType = compile(tree, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


@dataclass
class _Scope:
    """Class body, comprehension or generic around the current code."""

    names: set[str] | None = None  # a comprehension's own variables, a generic's parameters; None for a class
    through: bool = False  # code in it sees the names of a class around it, as a generic's does
    label: str = ""  # a class's prefix for its own names in `sure`
    name: str = ""
    shared: set[str] = field(default_factory=set)  # names that a class body declares global
    bound: set[str] = field(default_factory=set)  # what a generic class binds; before that, the notebook's name counts
    uses: set[str] = field(default_factory=set)  # what the class's methods read


class NameFlow(ast.NodeVisitor):
    """Visitor that follows a cell in order of execution.

    `sure` has the names that every path to the current point has written (those of a class body after a label),
    `maybe` those that some path has written. `pending` has the names that functions will read when called.
    """

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.strong: set[str] = set()
        self.writes: set[str] = set()
        self.shell: set[str] = set()
        self.attributes: set[str] = set()
        self.uses: dict[str, set[str]] = {}
        self.pending: dict[str, set[str]] = {}
        self.sure: set[str] = set()
        self.maybe: set[str] = set()
        self.dropped: set[str] = set()
        self.dead = False  # this path has raised
        self.guessing = False
        self.scopes: list[_Scope] = []
        self.labels = 0
        self.following: set[str] = set()
        # Annotations are evaluated lazily.
        self.lazy = sys.version_info >= (3, 14)

    def follow_cell(self, tree: ast.Module) -> None:
        """Follow the whole cell, then functions that may be called after it."""
        self.lazy = self.lazy or any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in tree.body
        )
        self.guess(_by_text(tree))
        self.run(tree.body)
        self.settle(self.pending)

    # -- names ------------------------------------------------------------------------------
    def load(self, name: str, *, from_function: bool = False) -> None:
        """Record a read here, or by a function's code, which does not see class names."""
        name = self.mangled(name)
        innermost = not from_function
        for scope in reversed(self.scopes):
            if scope.names is not None:
                if name in scope.names:
                    return
            elif innermost and name not in scope.shared:
                self.follow(scope.label + name)
                if scope.label + name in self.sure:
                    return
                if name in scope.bound:
                    break
            innermost = innermost and scope.through
        if name not in self.sure:
            self.reads.add(name)
            if name not in self.maybe and not self.guessing:
                self.strong.add(name)
        self.follow(name)

    def follow(self, name: str) -> None:
        """Record the reads of a function, which may be called from here on."""
        if name in self.pending and name not in self.following:
            self.following.add(name)
            # The function was defined outside of the scopes around its use.
            around, self.scopes = self.scopes, []
            for used in sorted(self.pending[name]):
                self.load(used)
            self.scopes = around
            self.following.discard(name)

    def settle(self, names: Iterable[str]) -> None:
        """Record the reads of functions that were defined and not used by name."""
        before, self.guessing = self.guessing, True
        for name in list(names):
            self.follow(name)
        self.guessing = before

    def mangled(self, name: str) -> str:
        """Return the mangled form of a class's private name."""
        classes = [scope.name for scope in self.scopes if scope.names is None]
        if not (classes and name.startswith("__")) or name.endswith("__") or not classes[-1].strip("_"):
            return name
        return f"_{classes[-1].lstrip('_')}{name}"

    def store(self, name: str) -> None:
        name = self.mangled(name)
        scope = self.scopes[-1] if self.scopes else None
        if scope is not None and scope.names is None and name not in scope.shared:
            self.sure.add(scope.label + name)
        elif scope is None or scope.names is None or name not in scope.names:
            self.writes.add(name)
            self.sure.add(name)
            self.maybe.add(name)
            self.dropped.discard(name)

    def store_later(self, name: str) -> None:
        """Record a possible write at some other time."""
        self.writes.add(name)
        self.maybe.add(name)

    # -- paths ------------------------------------------------------------------------------
    def run(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def either(self, *paths: Callable[[], None]) -> None:
        """Follow alternative paths; afterwards, names that all of them write are sure."""
        before, ends = self.sure, []
        for path in paths:
            self.sure, self.dead = set(before), False
            path()
            if not self.dead:
                ends.append(self.sure)
        self.dead = not ends
        self.sure = set.intersection(*ends) if ends else set(before)

    def perhaps(self, *nodes: ast.AST | None) -> None:
        self.either(lambda: self.run(nodes), lambda: None)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.either(lambda: self.run(node.body), lambda: self.run(node.orelse))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self.either(lambda: self.visit(node.body), lambda: self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self.perhaps(*node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> None:
        self.run([node.left, node.comparators[0]])
        self.perhaps(*node.comparators[1:])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self.perhaps(node.msg)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self.dead = True

    def loop(self, *nodes: ast.AST | None) -> None:
        """Follow a loop's code once: in its first run, the fewest names are sure."""
        known = {name: set(uses) for name, uses in self.pending.items()}

        def once() -> None:
            self.run(nodes)
            # The next iteration may call, at its top, a function that this one has defined further down.
            self.settle(name for name, uses in self.pending.items() if known.get(name) != uses)

        self.either(once, lambda: None)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.loop(*node.body, node.test)
        self.perhaps(*node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.loop(node.target, *node.body)
        self.perhaps(*node.orelse)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        # A context manager may suppress exceptions raised after its entry, so only its own entry is certain.
        first, *others = node.items
        self.visit(first.context_expr)
        if isinstance(first.optional_vars, ast.Name):
            self.visit(first.optional_vars)
            target = None
        else:
            target = first.optional_vars
        parts = [part for item in others for part in (item.context_expr, item.optional_vars)]
        self.perhaps(target, *parts, *node.body)

    def visit_Try(self, node: ast.Try) -> None:
        before = set(self.sure)
        handlers = [functools.partial(self.handler, handler) for handler in node.handlers]
        self.either(lambda: self.run([*node.body, *node.orelse]), *handlers)
        after, dead = self.sure, self.dead
        self.sure = set(before)
        self.run(node.finalbody)
        self.sure, self.dead = after | self.sure, dead or self.dead

    def handler(self, node: ast.ExceptHandler) -> None:
        self.run([node.type])
        if node.name:
            self.store(node.name)
        self.run(node.body)
        if node.name:
            self.dropped |= {node.name} & self.writes

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self.either(*(functools.partial(self.case, case) for case in node.cases), lambda: None)

    def case(self, node: ast.match_case) -> None:
        self.run([node.pattern, node.guard, *node.body])

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        if node.name:
            self.store(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self.store(node.rest)

    # -- expressions and assignments, in the order in which Python evaluates them ---------------
    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store):
            self.load(node.id)
        if not isinstance(node.ctx, ast.Load):
            self.store(node.id)  # A deleted name is no longer the notebook's either.
        if isinstance(node.ctx, ast.Del):
            self.dropped |= {node.id} & self.writes

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.add(node.attr)
        self.visit(node.value)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self.run([key, value])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.store(node.target.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.run([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.load(node.target.id)
            self.run([node.value, node.target])
        else:
            self.run([node.target, node.value])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.run([node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)
        self.annotation(node.annotation)

    def annotation(self, node: ast.expr | None) -> None:
        """Follow an annotation, now or later, and the names in its strings."""
        if node is not None:
            self.later(node) if self.lazy else self.visit(node)
            self.guess(annotation_names([node]))

    def later(self, *nodes: ast.AST | None) -> None:
        """Follow expressions that are evaluated lazily."""
        before, self.guessing = self.guessing, True
        self.run(nodes)
        self.guessing = before

    @contextlib.contextmanager
    def type_parameters(self, node: Any) -> Iterator[None]:
        """Enter the scope of type parameters, whose bounds are evaluated lazily."""
        parameters = getattr(node, "type_params", [])
        if not parameters:
            yield
            return
        self.scopes.append(_Scope(names={parameter.name for parameter in parameters}, through=True))
        self.later(*parameters)
        yield
        self.scopes.pop()

    def visit_TypeAlias(self, node: Any) -> None:
        with self.type_parameters(node):
            self.later(node.value)
        self.visit(node.name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.store(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":
                self.store(alias.asname or alias.name)
            else:
                for name in _public_names(node.module or ""):
                    self.store_later(name)

    def visit_Global(self, node: ast.Global) -> None:
        if self.scopes:
            self.scopes[-1].shared.update(map(self.mangled, node.names))

    def comprehension(self, node: Any) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        targets = [part for generator in node.generators for part in ast.walk(generator.target)]
        names = {part.id for part in targets if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        self.scopes.append(_Scope(names=names))
        nodes = [first.target, *first.ifs]
        for generator in others:
            nodes += [generator.iter, generator.target, *generator.ifs]
        results = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self.loop(*nodes, *results)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension

    # -- functions and classes --------------------------------------------------------------
    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.run([*node.args.defaults, *node.args.kw_defaults])
        for name in sorted(self.code_of(ast.copy_location(ast.Expr(node), node))):
            self.load(name, from_function=True)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        self.run([*node.decorator_list, *arguments.defaults, *arguments.kw_defaults])
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        with self.type_parameters(node):
            for annotation in (*(parameter.annotation for parameter in parameters if parameter), node.returns):
                self.annotation(annotation)
            reads = self.code_of(_bare(node))
        self.define(node.name, reads, at_once=bool(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.run(node.decorator_list)
        with self.type_parameters(node):
            self.run([*node.bases, *node.keywords])
            self.labels += 1
            bound = _bound(node.body) if getattr(node, "type_params", None) else set()
            self.scopes.append(_Scope(label=f"{self.labels}:", name=node.name, bound=bound))
            self.run(node.body)
            uses = self.scopes.pop().uses
        # A decorator, a base or a metaclass may call the methods as soon as the class exists.
        self.define(node.name, uses, at_once=bool(node.decorator_list or node.bases or node.keywords))

    def define(self, name: str, uses: set[str], *, at_once: bool) -> None:
        scope = self.scopes[-1] if self.scopes else None
        if at_once:
            for used in sorted(uses):
                self.load(used, from_function=True)
        name = self.mangled(name)
        key = name if scope is None else scope.label + name
        self.pending[key] = self.pending.get(key, set()) | uses
        if scope is None:
            self.uses.setdefault(name, set()).update(uses)
        else:
            scope.uses |= uses
        self.store(name)

    def code_of(self, node: ast.stmt) -> set[str]:
        """Return the global names that a function's code reads; record its writes."""
        wrapped, depth = node, 1
        classes = [scope for scope in self.scopes if scope.names is None]
        if classes:  # For names like __private, which Python mangles by the class around them.
            body = ast.parse(f"class {classes[-1].name}: pass").body[0]
            assert isinstance(body, ast.ClassDef)
            body.body, wrapped, depth = [node], body, 2
        codes = [_compiled(ast.Module([wrapped], []))]
        for _ in range(depth):
            codes = [const for code in codes for const in code.co_consts if isinstance(const, types.CodeType)]
        reads: set[str] = set()
        for code in codes:
            reads |= code_reads(code)
            self.guess(code_guesses(code), from_function=True)
            self.attributes |= code_attributes(code)
            for name in code_writes(code):
                self.store_later(name)
        # Variables of a comprehension or a generic around it are not the notebook's.
        return reads.difference(*(scope.names for scope in self.scopes if scope.names))

    # -- IPython's shell lines and magics, and code in strings ---------------------------------
    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method and _is_ipython(node.func.value):  # type: ignore[attr-defined]
            self.magic(method, texts)
        elif method in PANDAS:
            self.guess(name for text in texts for name in at_names(text))
        elif isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec") and texts:
            self.code_text(texts[0])

    def magic(self, method: str, texts: list[str]) -> None:
        name, line, body = (*texts, "", "", "")[:3]
        # IPython expands a magic's line, and the body if a shell runs it.
        expanded = texts if method in _SHELL or name in _SHELL else texts[:2]
        guessed = {found for text in expanded for found in expansions(text)}
        before, self.reads = self.reads, set()
        self.guess(guessed)
        if name in _LINE_CODE:  # for %%timeit, its set-up
            self.code_text(line[_OPTIONS.match(line).end() :].strip())  # type: ignore[union-attr]
        elif name in _LINE_NAMES:
            self.guess(words(line))
        elif name == "capture":
            for out in line.split():
                if out.isidentifier():
                    self.store_later(out)
        if method == "run_cell_magic":
            for out in _OUTPUTS.findall(line):
                self.store_later(out)
            if name not in _CELL_NOT_CODE:
                self.code_text(body)
        self.shell |= self.reads
        self.reads |= before

    def guess(self, names: Iterable[str], *, from_function: bool = False) -> None:
        before, self.guessing = self.guessing, True
        for name in sorted(names):
            self.load(name, from_function=from_function)
        self.guessing = before

    def code_text(self, text: str) -> None:
        """Follow code in a string as part of the cell; guess by its words if invalid."""
        for candidate in (str, plain):
            try:
                tree = ast.parse(candidate(text))
                _compiled(tree)
            except (SyntaxError, ValueError):
                continue
            self.guess(_by_text(tree))
            self.perhaps(*tree.body)
            return
        self.guess(words(text))


for _node, _visitor in {
    "TryStar": "Try",
    "AsyncFor": "For",
    "AsyncWith": "With",
    "AsyncFunctionDef": "FunctionDef",
    "MatchStar": "MatchAs",
}.items():
    setattr(NameFlow, f"visit_{_node}", getattr(NameFlow, f"visit_{_visitor}"))


def _is_ipython(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get_ipython"


def _bound(body: Iterable[ast.AST]) -> set[str]:
    """Return names that a class body may bind."""
    bound: set[str] = set()
    for node in body:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(name := getattr(node, "name", None), str):  # definitions, handlers and patterns
            bound.add(name)
        if not isinstance(node, _SCOPED):
            bound |= _bound(ast.iter_child_nodes(node))
    return bound


def _bare(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """Return a function without decorators, annotations and type parameters."""
    bare: Any = copy.copy(node)
    bare.decorator_list, bare.type_params, bare.returns, bare.args = [], [], None, copy.deepcopy(node.args)
    for part in ast.walk(bare.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    found: ast.stmt = bare
    return found


def _by_text(tree: ast.AST) -> set[str]:
    """Return names in strings of code that asks for a whole namespace."""
    nodes = list(ast.walk(tree))
    called = (node.func for node in nodes if isinstance(node, ast.Call) and not node.args)
    if not any(isinstance(function, ast.Name) and function.id in _NAMESPACES for function in called):
        return set()
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {name for text in texts for name in ({text} if text.isidentifier() else fields(text))}


def _public_names(module: str) -> list[str]:
    """Return what ``from module import *`` binds, if the module is loaded here."""
    known = sys.modules.get(module)
    if known is None:
        return []
    return [*getattr(known, "__all__", [name for name in vars(known) if not name.startswith("_")])]
