"""What cannot be learned costs nothing: conditionals are mixed with margins, and columns of chance are hidden."""

import copy
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from test_anyorder import FINITE, MIXED, awake, seeded

from ctem import CTEM
from ctem.bases import ProductBase
from ctem.densities.anyorder import AnyOrderNet, AtLevel, HiddenColumns, Settings, fit_anyorder
from ctem.densities.anyorder.shrinking import EVIDENCE, Unseen, _Gains, alone, found_worth
from ctem.densities.anyorder.worth import Worth, mixed
from ctem.spaces import Category, Real, Space
from ctem.tables.answers.density import TableDensity

CHANCE = ("two", "thirty", "many", "normal", "skewed")
LEAST = 0.003  # nats that a column of chance may cost
BITS = Space([Category(2)] * 2)


def made_up(rows, seed):
    """Three dependent columns, and five of chance."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 4, rows)
    x = rng.normal(size=rows) + 0.8 * kind
    y = np.sin(x) + 0.4 * rng.normal(size=rows) * (1 + 0.5 * kind)
    return pd.DataFrame(
        {
            "kind": np.array(list("pqrs"))[kind],
            "x": x,
            "y": y,
            "two": np.array(["no", "yes"])[(rng.random(rows) < 0.4).astype(int)],
            "thirty": [f"t{v}" for v in rng.integers(0, 30, rows)],
            "many": [f"m{v}" for v in rng.integers(0, 200, rows)],
            "normal": rng.normal(size=rows),
            "skewed": rng.lognormal(size=rows),
        }
    )


def cost(model, X, name):
    """Mean nats that a column loses against its margin by being asked given all others."""
    table, frame = TableDensity(model.schema_, model.density_), model.as_frame(X)
    x, log_det = table.encode(frame)
    j = list(X.columns).index(name)
    margin = model.density_.base.column_log_prob(x)[:, table.schema.owner[j]].sum(1).numpy() + log_det[:, j]
    given = model.log_density(X, [name], [other for other in X.columns if other != name])
    return float((margin - given).mean())


@pytest.mark.long
def test_a_column_of_chance_costs_no_more_than_its_margin_and_the_others_nothing():
    X, new = made_up(4000, 1), made_up(4000, 2)
    model = CTEM(random_state=0).fit(X)
    assert {name: nats for name in CHANCE if (nats := cost(model, new, name)) > LEAST} == {}
    others = [name for name in X.columns if name not in CHANCE]
    without = CTEM(random_state=0).fit(X[others]).score_samples(new[others])
    lost = without - model.log_density(new, others, CHANCE)
    assert lost.mean() < 0.02
    nats = {column["name"]: column["nats_from_others"] for column in model.describe()["columns"]}
    assert all(nats[name] == 0 for name in CHANCE)
    assert all(nats[name] > 0.3 for name in others)


def dependent_rows(n, seed=0):
    """Two columns that follow each other, and a label of chance of thirty values."""
    rng = np.random.default_rng(seed)
    bit = (rng.random(n) < 0.5).astype(float)
    number = 1.2 * (2 * bit - 1) + 0.6 * rng.normal(size=n)
    return torch.tensor(np.stack([bit, number / 1.35, rng.integers(0, 30, n)], 1), dtype=torch.float32)


DEPENDENT = Space([Category(2), Real(), Category(30)])
EAGER = Settings(
    width=32,
    blocks=1,
    members=3,
    steps=500,
    batch_size=128,
    learning_rate=1e-2,
    evaluate_every=20,
    least_gain=0.02,
)


@pytest.fixture(scope="module")
def fitted():
    return fit_anyorder(DEPENDENT, dependent_rows(1000), EAGER)


def test_a_column_of_chance_is_alone_and_the_others_are_heard(fitted):
    worth = fitted.net.worth
    assert worth.heard == (True, True, False)
    assert worth.share[2] == worth.nats[2] == 0
    assert min(worth.share[:2]) > 0.9
    assert min(worth.nats[:2]) > 0.3


def test_a_column_that_is_alone_has_its_margin_whatever_is_shown_and_tells_nothing(fitted):
    x = dependent_rows(50, seed=1)
    margin = fitted.base.column_log_prob(x)[:, 2].double()
    torch.testing.assert_close(fitted.log_prob(x, [2], [0, 1]), margin)
    other = x.clone()
    other[:, 2] = (other[:, 2] + 7) % 30
    assert torch.equal(fitted.log_prob(x, [0, 1], [2]), fitted.log_prob(other, [0, 1], [2]))
    torch.testing.assert_close(fitted.log_prob(x), fitted.log_prob(x, [0, 1]) + margin)


def test_training_without_the_outputs_of_a_column_that_is_alone_is_the_same(fitted):
    """Conditionals and gradients are those of a network that computes all of its outputs."""
    x, generator = dependent_rows(40, seed=1).expand(3, -1, -1), seeded()
    shown = torch.rand(x.shape, generator=generator) < 0.5
    level, short, whole = torch.full((3, 40, 1), 1e-3), fitted.net, copy.deepcopy(fitted.net)
    whole.believe(Worth.of_all(3))
    hidden = shown & torch.tensor([True, True, False])
    found, expected = short.log_conditionals(x, shown, level), whole.log_conditionals(x, hidden, level)
    torch.testing.assert_close(found[..., :2], expected[..., :2])
    torch.testing.assert_close(found[..., 2], fitted.base.column_log_prob(x)[..., 2])
    for log_p, net in ((found, short), (expected, whole)):
        net.zero_grad()
        log_p[..., :2].sum().backward()
    for one, other in zip(short.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    short.zero_grad()


def test_no_pass_is_made_for_a_column_that_is_alone(fitted, monkeypatch):
    x, asked = dependent_rows(50, seed=1), torch.tensor([True, True, False]).expand(50, 3)
    monkeypatch.setattr(AnyOrderNet, "trunk", lambda *_: pytest.fail("the networks were asked"))
    at = AtLevel(fitted.net, fitted.level)
    margin = fitted.base.column_log_prob(x)[:, 2]
    torch.testing.assert_close(at.given(x, asked, 2).log_prob(x[:, 2]), margin)
    assert set(at.draw(x, asked, 2, seeded()).tolist()) <= set(map(float, range(30)))


def test_networks_that_learned_by_heart_are_worse_without_shares(fitted):
    """The test above could pass if nothing had been learned by heart; so it is looked for."""
    x, net = dependent_rows(2000, seed=1), copy.deepcopy(fitted.net)
    net.believe(Worth.of_all(3))
    at, seen = AtLevel(net, fitted.level), torch.tensor([True, True, False]).expand(2000, 3)
    assert at.given(x, seen, 2).log_prob(x[:, 2]).mean() < fitted.log_prob(x, [2], [0, 1]).mean() - 0.003


class Told(AnyOrderNet):
    """Says of the two bits of a row what their joint density says, and then errs: e^{noise} times as likely."""

    def __init__(self, strength, noise, members=1):
        super().__init__(ProductBase(BITS), width=8, members=members)
        self.strength, self.noise = strength, noise

    def log_conditionals(self, x, visible, level, clear=None):
        """ρ(x_j | other) = (1 + strength) / 2 if both are alike; the error is of the row and the member."""
        other, alike = visible.flip(-1), x == x.flip(-1)
        p = torch.where(other, torch.where(alike, 0.5 + self.strength / 2, 0.5 - self.strength / 2), 0.5)
        wrong = self.noise * torch.randn(x.shape[:-1], generator=seeded(3)).unsqueeze(-1)
        return torch.log((p + torch.where(x == 0, wrong, -wrong)).clamp(0.01, 0.99))


def alike_rows(n, strength, members=1):
    """Bits that are alike with probability (1 + strength) / 2."""
    generator = seeded(1)
    first = (torch.rand(members, n, generator=generator) < 0.5).float()
    same = torch.rand(members, n, generator=generator) < (1 + strength) / 2
    return torch.stack([first, torch.where(same, first, 1 - first)], -1)


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_the_share_is_that_of_truth_among_truth_and_error(strength):
    """w = S / (S + N) for one network, with twice the odds where it is one of two; S half, for half of the sets."""
    n, noise = 20_000, 0.1
    true, wrong = (
        0.75 * strength**2,
        4 * noise**2,
    )  # the other bit is shown in half of random sets, and in all others
    for members in (1, 2):
        unseen = Unseen(alike_rows(n, strength, members), 1e-3, HiddenColumns())
        found = found_worth(Told(strength, noise, members), unseen)
        expected = true / (true + wrong / members)
        for share in found.share:
            assert share == pytest.approx(expected, abs=0.06)


def test_networks_that_are_right_are_believed_in_everything():
    found = found_worth(Told(0.3, 0.0), Unseen(alike_rows(5000, 0.3), 1e-3, HiddenColumns()))
    assert found.share == (1.0, 1.0)
    information = (1.3 * math.log(1.3) + 0.7 * math.log(0.7)) / 2
    assert found.nats == pytest.approx((information, information), abs=4 * 0.3 / math.sqrt(5000))


def test_the_mean_of_the_members_is_judged_where_rows_are_new_to_all():
    """The same error twice: the odds of the mean are those of one."""
    rows = alike_rows(20_000, 0.3).expand(2, -1, -1)

    class Same(Told):
        def log_conditionals(self, x, *rest):
            return super().log_conditionals(x[:1], rest[0][:1], *rest[1:]).expand(2, -1, -1)

    one, two = (
        found_worth(Same(0.3, 0.1, 2), Unseen(rows, 1e-3, HiddenColumns(), shared=shared)).share
        for shared in (True, False)
    )
    for of_mean, of_one in zip(one, two, strict=True):
        assert of_one / (1 - of_one) == pytest.approx(2 * of_mean / (1 - of_mean), rel=0.15)


def test_few_rows_leave_a_share_between_its_ends():
    """Where nothing is known, half for one network and with K times the odds for one of K; little moves it little."""
    for members in (1, 4):
        unseen = Unseen(alike_rows(8, 0.0, members), 1e-3, HiddenColumns())
        assert found_worth(Told(0.0, 0.0, members), unseen).share == pytest.approx(
            (members / (1 + members),) * 2, abs=1e-6
        )
    shares = found_worth(Told(0.0, 0.3), Unseen(alike_rows(40, 0.0), 1e-3, HiddenColumns())).share
    assert 0.0 < max(shares) < 0.5
    shares = found_worth(Told(0.9, 0.0), Unseen(alike_rows(40, 0.9), 1e-3, HiddenColumns())).share
    assert min(shares) > 0.9


def test_little_evidence_of_many_rows_leaves_a_share_at_its_end():
    """Many rows that say nothing against a network leave it believed, and one that is worse than the margin is not."""
    rows = alike_rows(1000, 0.0)
    assert found_worth(Told(0.0, 0.0), Unseen(rows, 1e-3, HiddenColumns())).share == (1.0, 1.0)
    gains = found_worth(Told(0.0, 0.3), Unseen(rows, 1e-3, HiddenColumns()))
    assert set(gains.share) <= {0.0, 1.0}
    assert max(gains.nats) < EVIDENCE / 1000


def test_the_best_share_is_the_best_of_a_grid():
    ratio = torch.randn(500, 6, generator=seeded(), dtype=torch.float64) * torch.tensor(
        [0.1, 0.3, 1, 2, 3, 5]
    )
    ratio[::7, 0] = math.nan
    weight = (~ratio.isnan()) / (~ratio.isnan()).sum(0).double()
    gains = _Gains(ratio, weight)
    grid = torch.stack([gains.at(torch.full((6,), w / 1000).double()) for w in range(1001)])
    assert bool((gains.at(gains.best()) >= grid.amax(0) - 1e-9).all())
    assert bool((gains.at(torch.zeros(6).double()) == 0).all())
    prior = [0.01 * (math.log(w / 1000) + math.log(1 - w / 1000)) for w in range(1, 1000)]
    best, found = (grid[1:-1] + torch.tensor(prior).unsqueeze(1)).amax(0), gains.best(0.01)
    assert bool((gains.at(found) + 0.01 * (found * (1 - found)).log() >= best - 1e-9).all())


def test_a_column_is_alone_only_if_the_others_do_not_profit():
    """Both bits have a share of 0, but each tells the other."""
    rows, nothing = alike_rows(4000, 0.5), Worth((0.0, 0.0), (True, True))
    unseen = Unseen(rows, 1e-3, HiddenColumns())
    assert alone(Told(0.5, 0.0), unseen, nothing) == {}
    found = alone(Told(-0.5, 0.0), unseen, nothing)  # says the contrary of what is true
    assert set(found) == {0, 1}
    assert min(found.values()) > 0.05


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_mixed_terms_of_training_are_those_of_the_conditionals(share):
    """What orders are chosen by is what is answered."""
    net, x = awake(FINITE, members=1), FINITE.states()
    net.believe(Worth((share,) * 3, (True,) * 3))
    visible = torch.zeros_like(x, dtype=torch.bool)
    visible[:, 0] = True
    log_p = net.log_conditionals(x.unsqueeze(0), visible.unsqueeze(0), torch.full((1, len(x), 1), 1e-3))
    found = mixed(net.base, net.worth.share, x, log_p[0])
    for j in (1, 2):
        torch.testing.assert_close(found[:, j], AtLevel(net, 1e-3).given(x, visible, j).log_prob(x[:, j]))


def test_a_mixed_density_of_numbers_draws_the_margin_as_often_as_it_is_believed():
    """A network that says "about 4" and is believed in half: half of the draws are of a standard normal."""
    net, n = awake(MIXED), 20_000
    net.believe(Worth((1.0, 0.0, 1.0, 0.0), (True,) * 4))
    rows, hidden = torch.zeros(n, 4), torch.zeros(n, 4, dtype=torch.bool)
    at = AtLevel(net, 1e-3)
    for drawn in (at.draw(rows, hidden, 1, seeded()), at.given(rows, hidden, 1).draw(seeded())):
        assert abs(float(drawn.mean())) < 5 / math.sqrt(n)
        assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / n)


def test_nats_from_others_are_kept_in_the_file_and_displayed(tmp_path, capsys):
    from ctem.cli.commands import Info
    from ctem.cli.facts import info

    X = pd.DataFrame(dependent_rows(300).numpy(), columns=["bit", "number", "label"]).astype({"label": str})
    model = CTEM(
        max_steps=40, width=16, members=2, orders=1, batch_size=64, learning_rate=0.01, random_state=0
    )
    model.fit(X)
    worth = model.density_.net.worth._replace(share=(1 / 3, 1.0, 0.0), heard=(True, True, False))
    model.density_.net.believe(worth)
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert again.density_.net.worth == worth
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    info(Info(model=tmp_path / "model.ctem", as_json=True))
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert [column["nats_from_others"] for column in columns] == list(worth.nats)
    assert [column["believed"] for column in columns] == list(worth.share)
    info(Info(model=tmp_path / "model.ctem"))
    assert "from others" in capsys.readouterr().out
