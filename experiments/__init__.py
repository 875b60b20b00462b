"""One script per table or figure; importing this package watches which functions of the library a run enters.

A result rests on the code that its run executed, and on no other (``results.py`` keeps a digest of it). So the library
is loaded with a mark at the head of every function, which costs a run tens of nanoseconds a call, in every process and
thread. This works if the package is imported before the library, as ``python -m experiments.…`` does; of a module that
was there before, everything counts.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

LIBRARY = "ctem"
ENTERED: dict[
    str, set[str]
] = {}  # module → the functions of it that have been entered; what is not here was not watched

# What cannot move a number, so that a change of it makes no result stale: checks that return nothing, with what they
# allow, and the reading of files whose bytes have the SHA-256 that the table of data sets asks for.
NEUTRAL: dict[str, set[str]] = {
    "ctem.arguments": {
        *("check_arguments", "check_count", "_check_pairwise"),
        *("ANYORDER", "MOST", "NUMBERS", "OBJECTIVES", "UNKNOWN"),
    },
    "ctem.datasets.downloads": {"root", "read", "check", "_downloaded", "_bounded", "LARGEST"},
}

# Edits that have moved no number, each looked at: the digest of a function before and after. A result with the former
# is current as long as the latter is there, or if the function is gone.
GONE = "gone"
EQUAL = {
    "89b48aa4ff5f": "0c734c85ddf2",  # density.AnyOrderDensity.altered: takes other orders, too
    "689cdbd9a534": "17680c1c837e",  # density.TableDensity._rarity: other for one member alone, in no result
    "e61b3abc239c": "08a7f26e80fa",  # heldout.blind: the same, kept
    "e7f8eb188476": "72900b5c1ab5",  # conditionals.AtLevel: the same
    "ba95dfc60cec": "0154cf6188d2",  # conditionals.AtLevel.__init__: the same
    "3492b3797cce": GONE,  # conditionals.AtLevel.base: an attribute
    "249296c8ce88": "b6bed3d7cb66",  # conditionals.AtLevel.given: one of several questions
    "0da8e083887b": "3a255b9d649c",  # density.AnyOrderDensity._by_order: orders share a pass: equal but for rounding
    "cd9a1b6e2d81": "fe9417e6e2fb",  # density.AnyOrderDensity._split: fewer rows at a time where scores are many
    "a4d3ff6530dd": "0f91c0bc4537",  # fitting.split_rows: weights, of which no result has any
    "0c98eda176fe": GONE,  # AnyOrderNet._asked: AnyOrderNet.shown
    "6e418201a60b": "f133b031c496",  # AnyOrderNet.label_log_probs: the same, of what is shown
    "4da11fa487b8": "f08f69df1c7e",  # AnyOrderNet.number_coefficients: the same, of what is shown
    "f5797a95c727": "6d91d0badd27",  # Chain._given: draws alone ask it now
    "7f77e18784e6": GONE,  # Chain._term: Chain._terms does it
    "9fa8d33a86bd": "5eb36960970f",  # Chain._terms: columns and orders share a pass: equal but for rounding
    "a021ac1894c8": "e73b66f60bae",  # Chain.log_prob: the same in several orders
    "c5d1f1da5344": "a5e335225696",  # chain.Conditionals: may answer several questions at once
    "97be7f6d9da8": GONE,  # chain._Contexts: contexts.Contexts
    "81cba7902ae3": GONE,  # chain._Contexts.__init__: contexts.Contexts
    "342e0933fc10": GONE,  # chain._Contexts.among: contexts.Contexts
    "0c54b0cdb727": GONE,  # chain._Contexts.show: contexts.Contexts
    "725b581c49ea": "d25eb9de73b3",  # codecs.Numbers.encode: values beyond ends: no AUC moved, no test row has any
    "e96adb30e939": "d29827c39276",  # Chain._asked: the same, with a file of its own for contexts
    "9aae5c4fcbb6": "8cdad789fd61",  # Chain._gaps: the same
    "7beb35593383": GONE,  # chain._Contexts.of: contexts.Contexts
    "7c9c55f9688d": "d25eb9de73b3",  # codecs.Numbers.encode: values beyond ends: no AUC moved, no test row has any
    "1a464647ded2": GONE,  # codecs.Numbers._log_beyond: Bounded.log_beyond
    "ca76804b5f2a": GONE,  # frame._as_written: as_written
    "149d320fd9de": "f720bc30ba10",  # frame.build_frame: the same
    "a5c27b5842b3": "189c37ff7577",  # conditionals.AtLevel.draw: the same
    "a389a4aea5aa": "d5c59d605590",  # density.AnyOrderDensity._log_terms: the same
    "8a1adc5b3277": "e664e672fafd",  # Chain.log_terms: the same in several orders
    "ec12f1f571af": "acd9c30797b0",  # learning.weighted_rows: weights, of which no result has any
    "79fd44ed5759": "c2bf164f022b",  # density.TableDensity._added: values beyond ends, see Numbers.encode
    "1c87aaa07d2a": "e7572608a383",  # firstorder.FirstOrder: says what it implements
    "ba788ef22665": "d8898a0d2600",  # observed.filled: columns without any value, of which no result has one
    "b0585a8973a8": "9a0570a4ea42",  # streaming._fill: the same
    "9b9896da5c7b": GONE,  # streaming._located: located
    "a35c9ea40657": "48b4e20e7417",  # streaming.survey: the same
    "9b68c3d9b2a2": "8e57f238d2fb",  # large._read: categories of files, of which no result has any
    "9f7eab011d01": "166d8267b88b",  # large.open_large: the same
    "886c82b36589": "631952a64805",  # privacy._copied: copies, which no result tells
    "df27fa0edd26": "0964354111e1",  # privacy._pooled: the same
    "39088beec591": GONE,  # distributions._in_unit: the same in other words
    "82d1bc6d77ce": "07a5d880848f",  # distributions.ColumnDistribution.p_values: the same in other words
    "a36303430012": "3d2947c027f5",  # zones.check_zones: names what it checks
    "9238de8dcdb5": "68209ff40da4",  # density.TableDensity.conditional: other with missing="state" alone, in no result
    "9d955cfc214b": "7af1f336435f",  # distributions.ColumnDistribution.has_mean: none where all is missing
    "887cccf1e1f3": "ba09b77c7f7a",  # distributions.ColumnDistribution.quantile: the same
    "1098045e814a": "d8a91c530568",  # writings.Writing.labels: durations that were given in another unit
    "1bc05f80bd3e": "75c36c72cc3d",  # density.find_device: refuses a device that is not there
    "e2e262d2fe04": "a2e92ee0c6f1",  # calendars.with_rhythm: other where no cells fit a day; none here
    "478eb456ba5c": "3412e630a419",  # calendars._grid: the same
    "ec50b46c3e18": "04a6fac3cbc8",  # numbers._shown: words of a reason
    "764b4e165fab": "82c14daa0bcf",  # cells.Cells: how values are told
    "bbcb6479312c": "b4ce56353f2f",  # cells.Cells.to_list: the same
    "8c2dfd2a3f84": "3f7b26c4f779",  # writings.Writing._made: the same
    "1faa671f1cd7": GONE,  # frame._check_finite: check_finite
    "f14e52c1a0a8": "0a1d5e304199",  # frame.read_frame: the same
    "a8535f9df05b": "4c11528b54ec",  # estimator.CTEM.fit: weights, of which no result has any
    "35b01044b345": "acd9c30797b0",  # learning.weighted_rows: weights, of which no result has any
    "f8cb874555fa": "edc17c0502c2",  # heldout.check_held_out: the same
    "3385650a9043": "6ceb04169a98",  # heldout.held_out_parts: the same
    "6d1e7ebe82ab": "cae544c12442",  # intake._whole: X_val is read by a function of its own
    "0828d95d600e": "038c422e6518",  # intake._streamed: the same
    "8af51beb9236": "38ac214a4c7c",  # suspicions.remarks: one more
    "c0b1acc9daae": "a689a1eba5a3",  # tables.load_penguins: pandas where it is installed
    "bc4c3fb53864": "d8fc588578dd",  # arrow.write_arrow: times that were given in another unit
    "15f15296ba4d": "c99592cdf846",  # distributions.ColumnDistribution._averaged: the same, with a name for a part
    "adb24ec0c906": "c719635cfa4f",  # questions.Questions.classes: how values are told
    "45d16579debb": "c5db84c35ea5",  # questions.Questions.conditional: the same
    "6952d0625eb7": "c4242848658b",  # given.partial_frame: moments as text
    "eaffd51213c6": "440a83237b6a",  # zones.given_moments: the same
    "4d70d51bb464": "1461a5b5348d",  # phases.Phases.within: the same in two lines
    "394f267dcffb": "7e3683c02f7b",  # density.TYPICAL: fewer draws beside which one network's held-out rows are judged
    "011159010faa": "689cdbd9a534",  # density.TableDensity._rarity: the same
    "769fb4d60d52": "ad64f5b049b9",  # density.ENCODED: larger pieces, fewer threads
    "c1dc058dd613": "8056ec1cc624",  # density.TableDensity.log_prob_and_surprise: scores of held-out rows, in no result
    "88b556014384": GONE,  # surprise._expected_terms: of such scores
    "5267e89be8f1": GONE,  # surprise._masses: of such scores
    "57ceca7895d3": "e0de888e8d9c",  # surprise._filled_in: of such scores
    "531c5241ec33": "28dcb57ba833",  # surprise.surprises: of such scores
    "f8f08fb023c9": GONE,  # Chain._term: Chain._terms does it
    "7bde4f351be2": "6d91d0badd27",  # Chain._given: draws alone ask it now
    "6943e2353df5": "9b1f3c8ffebb",  # density.AnyOrderDensity.__init__: a flag, for surprises alone
    "707ad57924c0": "0c734c85ddf2",  # density.AnyOrderDensity.altered: takes other orders, too
    "956915708397": "8b06cdd35dd8",  # ties.Ties.said: columns that no row shows are not asked for
    "430f3d1acea1": "0bf3bc6f0332",  # formulas.CodecRuler.__init__: answers are kept by number
    "815477483dea": "54023fed2982",  # formulas.CodecRuler.cells: the same numbers, kept
    "1ba9f9ba0b61": "01b154230a13",  # formulas.CodecRuler.values: the same numbers, kept
    "c039d1a41119": GONE,  # formulas._same: _Kept compares
    "921cb1aff501": "0154cf6188d2",  # conditionals.AtLevel.__init__: the same
    "f605ae97a068": "b6bed3d7cb66",  # conditionals.AtLevel.given: one of several questions
    "b469a4aad19b": "4f2d2cc64359",  # ties.TiedParts: a field more, which says nothing unless it is asked for
    "fecb91efb56f": "7bb509dec297",  # ties.TiedParts.at_values: the new field goes along
    "e67ad321994a": "1747c4358cf7",  # ties.TiedParts.log_prob: the same width unless counted
    "2783d293e388": "d11a5139ae06",  # ties.TiedParts.rows: the new field goes along
    "6d5db4843b4d": "24ccd3b8ac47",  # formulas._Search.__init__: knows which rows are copies
    "de37142f277e": "58e08a8c148b",  # formulas._Search._near: copies count once; in all of default two change places
    "cc208f14567b": GONE,  # Chain._term: Chain._terms does it
    "23cc1f4e10bc": GONE,  # Chain.term: Chain._term does both
    "80e61933c4ca": "85110918f5e5",  # residuals._covariance: a sum in two lines
    "b5b71fc0cff2": "07f2f1b2574a",  # numbers._LogProb.backward: what was kept stays as it is
    "417276bb8a06": "d4a8d7628144",  # monotone._fitting: a plain float, which does not warn
    "d778d2209a1f": "a2e92ee0c6f1",  # calendars.with_rhythm: plain dates, of which no table here has any
    "1fc557119f0f": "901e56f10617",  # residuals.inverses: the few by LAPACK instead of sweeps, both in float64
    "0b2bdc93c56d": "05c403137cd4",  # Chain.fill: the loop that both have is one
    "1806abb0ea5c": "bedf7d572b2d",  # large._reachable: says what to do where a package is missing
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods by their qualified names; those inside a function are part of it."""
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            parts = (getattr(node, part, []) for part in ("body", "orelse", "finalbody"))
            yield from functions((each for part in parts for each in part), prefix)


def marked(source: bytes, path: str) -> ast.Module:
    """The module with a mark at the head of every function, below its docstring."""
    tree = ast.parse(source, path)
    for name, node in list(functions(tree.body)):
        (mark,) = ast.parse(f"__entered__.add({name!r})").body
        first = node.body[0]
        for part in ast.walk(mark):
            ast.copy_location(part, first)
        node.body.insert(ast.get_docstring(node) is not None, mark)
    return tree


class _Watched(SourceFileLoader):
    def get_code(self, fullname: str):  # no cache of bytecode: it would hold the marks
        path = self.get_filename(fullname)
        return compile(marked(self.get_data(path), path), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__entered__"] = ENTERED.setdefault(module.__name__, set())
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != LIBRARY:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Watched(fullname, spec.origin)
        return spec


if LIBRARY not in sys.modules:  # a library of which one half is watched would say too little
    sys.meta_path.insert(0, _Finder())
