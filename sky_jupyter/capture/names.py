"""Which names a cell reads and writes.

A name counts as read when it *could* be read before the cell has surely written it: what is left out
here is missing on the nodes, what is too much is only sent for nothing. Statements are followed in
order through branches and loops; the code of functions counts where the function's name is used, or
else at the end of the cell.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .functions import code_attributes, code_reads, code_writes, expansions

_INTERNAL = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_[ido]h|_exit_code|__\w+__|In|Out|exit|quit|display|get_ipython")
_OPTIONS = re.compile(r"(\s*-{1,2}\w+(\s+\d+)?(?=\s|$))*")
_LINE_CODE = {"time", "timeit", "prun", "memit", "mprun", "lprun"}
_CELL_NOT_CODE = {"!", "bash", "cmd", "file", "html", "javascript", "js", "latex", "markdown", "perl", "ruby"}
_CELL_NOT_CODE |= {"script", "sh", "svg", "sx", "system", "writefile"}


def is_internal(name: str) -> bool:
    """Whether `name` belongs to IPython or Python in every namespace, and so is never sent."""
    return _INTERNAL.fullmatch(name) is not None


@dataclass(frozen=True)
class CellNames:
    """What `analyse` found.

    Parameters
    ----------
    reads : frozenset of str
        Names that the cell may read from the namespace before it has surely written them.
    writes : frozenset of str
        Names that it may bind or delete in the namespace.
    shell : frozenset of str
        Those of `reads` that stand in shell lines and magics.
    weak : frozenset of str
        Those of `reads` that are only guessed at, or that the cell reads only where it has most
        likely written them itself: sent where possible, no reason to refuse the cell.
    sure : frozenset of str
        Those of `writes` that a cell that ends without an error has certainly written.
    uses : mapping of str to frozenset of str
        For each function and class that the cell defines, the names that its code reads.
    attributes : frozenset of str
        Attribute names in the code, for finding submodules.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    shell: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()
    uses: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    attributes: frozenset[str] = frozenset()


def analyse(source: str) -> CellNames:
    """The names that a cell reads and writes.

    Parameters
    ----------
    source : str
        Python as IPython's ``transform_cell`` leaves it.

    Raises
    ------
    SyntaxError
        As Python raises it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are given where the cell runs.
        tree = ast.parse(source)
        _compiled(tree)  # Some errors of syntax are found only here.
        flow = _Flow()
        flow.run(tree.body)
        flow.settle(flow.pending)
    reads = frozenset(flow.reads)
    return CellNames(
        reads=reads,
        writes=frozenset(flow.writes),
        shell=frozenset(flow.shell) & reads,
        weak=reads - flow.strong,
        sure=frozenset(flow.sure & flow.writes),
        uses={name: frozenset(uses) for name, uses in flow.uses.items()},
        attributes=frozenset(flow.attributes),
    )


def _compiled(tree: ast.Module) -> types.CodeType:
    code: types.CodeType = compile(tree, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


@dataclass
class _Scope:
    """A class body or a comprehension around the code in hand."""

    names: set[str] | None = None  # a comprehension's own variables; None for a class
    label: str = ""  # a class's prefix for its own names in `sure`
    name: str = ""
    shared: set[str] = field(default_factory=set)  # names that a class body declares global
    uses: set[str] = field(default_factory=set)  # what the class's methods read


class _Flow(ast.NodeVisitor):
    """Follows a cell as it would run, and keeps what is certain at the point in hand.

    `sure` holds the names that every path to this point has written (those of a class body under a
    label), `maybe` those that some path has. `pending` holds what functions will read when called.
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
        self.dead = False  # this path has raised
        self.guessing = False
        self.scopes: list[_Scope] = []
        self.labels = 0
        self.following: set[str] = set()

    # -- names ------------------------------------------------------------------------------
    def load(self, name: str, *, from_function: bool = False) -> None:
        """`name` is read here, or by a function's code, which does not see a class's names."""
        innermost = not from_function
        for scope in reversed(self.scopes):
            if scope.names is not None:
                if name in scope.names:
                    return
            elif innermost and name not in scope.shared:
                self.follow(scope.label + name)
                if scope.label + name in self.sure:
                    return
            innermost = False
        if name not in self.sure:
            self.reads.add(name)
            if name not in self.maybe and not self.guessing:
                self.strong.add(name)
        self.follow(name)

    def follow(self, name: str) -> None:
        """The function of this name may be called from here on: what it reads is read."""
        if name in self.pending and name not in self.following:
            self.following.add(name)
            for used in sorted(self.pending[name]):
                self.load(used, from_function=True)
            self.following.discard(name)

    def settle(self, names: Iterable[str]) -> None:
        """Count what functions read that were defined and not used by name."""
        before, self.guessing = self.guessing, True
        for name in list(names):
            self.follow(name)
        self.guessing = before

    def store(self, name: str) -> None:
        scope = self.scopes[-1] if self.scopes else None
        if scope is not None and scope.names is None and name not in scope.shared:
            self.sure.add(scope.label + name)
        elif scope is None or scope.names is None or name not in scope.names:
            self.writes.add(name)
            self.sure.add(name)
            self.maybe.add(name)

    def store_later(self, name: str) -> None:
        """`name` is written, if at all, at some other time."""
        self.writes.add(name)
        self.maybe.add(name)

    # -- paths ------------------------------------------------------------------------------
    def run(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def either(self, *paths: Callable[[], None]) -> None:
        """One of `paths` is taken; afterwards only what all of them wrote is sure."""
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
        """Code that runs any number of times. The first time is the one that knows least."""
        known = {name: set(uses) for name, uses in self.pending.items()}

        def once() -> None:
            self.run(nodes)
            # The next turn may call, at its top, a function that this one has defined further down.
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
        # A context manager may swallow what is raised after its entry, so only its own entry is sure.
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

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.run([node.annotation, node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

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
            self.scopes[-1].shared.update(node.names)

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
        self.run(node.decorator_list)
        arguments = node.args
        self.run([*arguments.defaults, *arguments.kw_defaults, node.returns])
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.run(parameter.annotation for parameter in parameters if parameter is not None)
        self.define(node.name, self.code_of(node), at_once=bool(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.run([*node.decorator_list, *node.bases, *node.keywords])
        self.labels += 1
        self.scopes.append(_Scope(label=f"{self.labels}:", name=node.name))
        self.run(node.body)
        uses = self.scopes.pop().uses
        # A decorator, a base or a metaclass may call the methods as soon as the class is made.
        self.define(node.name, uses, at_once=bool(node.decorator_list or node.bases or node.keywords))

    def define(self, name: str, uses: set[str], *, at_once: bool) -> None:
        scope = self.scopes[-1] if self.scopes else None
        if at_once:
            for used in sorted(uses):
                self.load(used, from_function=True)
        key = name if scope is None else scope.label + name
        self.pending[key] = self.pending.get(key, set()) | uses
        if scope is None:
            self.uses.setdefault(name, set()).update(uses)
        else:
            scope.uses |= uses
        self.store(name)

    def code_of(self, node: ast.stmt) -> set[str]:
        """The global names that the code of a function reads; those it writes are kept."""
        wrapped, depth = node, 1
        classes = [scope for scope in self.scopes if scope.names is None]
        if classes:  # For names like __private, which Python changes by the class around them.
            body = ast.parse(f"class {classes[-1].name}: pass").body[0]
            assert isinstance(body, ast.ClassDef)
            body.body, wrapped, depth = [node], body, 2
        codes = [_compiled(ast.Module([wrapped], []))]
        for _ in range(depth):
            codes = [const for code in codes for const in code.co_consts if isinstance(const, types.CodeType)]
        reads: set[str] = set()
        for code in codes:
            reads |= code_reads(code)
            self.attributes |= code_attributes(code)
            for name in code_writes(code):
                self.store_later(name)
        return reads

    # -- IPython's shell lines and magics, and code in strings ---------------------------------
    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method and _is_ipython(node.func.value):  # type: ignore[attr-defined]
            self.magic(method, texts)
        elif method in ("query", "eval"):  # pandas: "column > @name"
            self.guess(name for text in texts for name in re.findall(r"@([A-Za-z_]\w*)", text))
        elif isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec") and texts:
            self.code_text(texts[0])

    def magic(self, method: str, texts: list[str]) -> None:
        guessed = {name for text in texts for name in expansions(text)}
        self.shell |= guessed
        self.guess(guessed)
        before, self.reads = self.reads, set()
        if method == "run_line_magic" and len(texts) == 2 and texts[0] in _LINE_CODE:
            self.code_text(texts[1][_OPTIONS.match(texts[1]).end() :].strip())  # type: ignore[union-attr]
        elif method == "run_cell_magic" and len(texts) == 3 and texts[0] not in _CELL_NOT_CODE:
            if texts[0] in _LINE_CODE:  # %%timeit's set-up
                self.code_text(texts[1][_OPTIONS.match(texts[1]).end() :].strip())  # type: ignore[union-attr]
            elif texts[0] == "capture":
                for name in texts[1].split():
                    if name.isidentifier():
                        self.store_later(name)
            self.code_text(texts[2])
        self.shell |= self.reads
        self.reads |= before

    def guess(self, names: Iterable[str]) -> None:
        before, self.guessing = self.guessing, True
        for name in sorted(names):
            self.load(name)
        self.guessing = before

    def code_text(self, text: str) -> None:
        """Code that something else runs: as part of the cell if it parses, else by its words."""
        for candidate in (text, re.sub(r"(?m)^(\s*)[!%].*$", r"\1pass", text)):
            try:
                tree = ast.parse(candidate)
                _compiled(tree)
            except (SyntaxError, ValueError):
                continue
            self.perhaps(*tree.body)
            return
        self.guess(re.findall(r"[A-Za-z_]\w*", text))


for _node, _visitor in {
    "TryStar": "Try",
    "AsyncFor": "For",
    "AsyncWith": "With",
    "AsyncFunctionDef": "FunctionDef",
    "MatchStar": "MatchAs",
}.items():
    setattr(_Flow, f"visit_{_node}", getattr(_Flow, f"visit_{_visitor}"))


def _is_ipython(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get_ipython"


def _public_names(module: str) -> list[str]:
    """What ``from module import *`` binds, where this process knows the module."""
    known = sys.modules.get(module)
    if known is None:
        return []
    return [*getattr(known, "__all__", [name for name in vars(known) if not name.startswith("_")])]
